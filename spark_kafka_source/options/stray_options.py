"""Unknown options: foreign ones are warnings; misspelled or unprefixed ones are errors.

Jobs carry options without effect (of a file format, of another client, of an earlier version of the job), and Spark's
own connector ignores these. A misspelled option must be an error: the query would run without the setting that the user
wants. The same holds for a Kafka property without the prefix `kafka.`. Pure; used by `parsing`.

The spelling of the user is not available: Spark's JVM passes option names in lower case, and so does PySpark's
dictionary of options. Errors name a known option as `options.table` spells it, and an unknown one in lower case with
a suggestion in that spelling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from protocol.base.spelling import closest_match, same
from protocol.errors import ConfigurationError
from protocol.properties import BY_NAME, PROPERTIES
from protocol.settings.property_kinds import Effect, Property, Role

PREFIX = "kafka."

# Properties that users often write without the prefix, so their misspellings are recognised as well.
_OFTEN_BARE = ("group.id", "bootstrap.servers", "auto.offset.reset", "security.protocol")
# Other names for an option, with or without `kafka.`, in any case and with any separators.
_OTHER_NAMES = {
    "subscribe": "topics topicName topicNames topicList",
    "subscribePattern": "topicPattern topicsPattern topicRegex topicsRegex",
    "assign": "partitions topicPartitions",
    "startingOffsets": "startOffsets startOffset fromOffsets fromOffset",
    "startingOffsetsByTimestamp": "startOffsetsByTimestamp",
    "startingTimestamp": "startTimestamp startTime startingTime fromTimestamp",
    "endingOffsets": "endOffsets endOffset untilOffsets untilOffset toOffsets",
    "endingOffsetsByTimestamp": "endOffsetsByTimestamp",
    "endingTimestamp": "endTimestamp endTime endingTime untilTimestamp toTimestamp",
    "maxOffsetsPerTrigger": "maxOffsets maxRecordsPerTrigger maxRowsPerTrigger maxMessagesPerTrigger",
    "minOffsetsPerTrigger": "minOffsets minRecordsPerTrigger minRowsPerTrigger",
    "maxBytesPerTrigger": "maxBytes",
    "failOnDataLoss": "failOnLoss dataLoss",
    "topic": "topicName",
    "deliveryGuarantee": "guarantee semantic semantics",
    f"{PREFIX}group.id": "group groupName consumerGroup consumerGroupId consumerGroupName",
    f"{PREFIX}bootstrap.servers": "brokers broker.list servers bootstrap metadata.broker.list",
    f"{PREFIX}acks": "request.required.acks",
}
# Databricks' credentials for Kafka. Without them the query would connect as another user.
_DATABRICKS_CREDENTIALS = "databricks.servicecredential"


def why_ignored(name: str, options: Iterable[str], role: Role, otherwise: dict[str, str]) -> str:
    """Return the reason why an unknown option has no effect.

    `name`: the unknown option.
    `options`: the options that apply to the query.
    `role`: the role whose Kafka properties apply to the query.
    `otherwise`: reasons that replace those of the property table, by property.
    Raises `ConfigurationError`: the option is probably misspelled or lacks the prefix, and the message names the right
    one; or it names credentials that Databricks gives to its own connector only.
    """
    lower = name.lower()
    row = BY_NAME.get(lower)
    if lower.startswith(_DATABRICKS_CREDENTIALS):
        raise ConfigurationError(
            f"{name} is not supported: Databricks gives such credentials to its own connector only. Give "
            f"{PREFIX}sasl.oauthbearer.token.provider=package.module:function, which gives a token; docs/clouds.md has "
            "one for a service credential.",
            name=name,
        )
    if row is not None and not _applies(row, role):
        of_other_role = "a Kafka property of the other role (consumer or producer)"
        return otherwise.get(lower, row.doc) if row.role & (role | Role.CLIENT) else of_other_role
    bare = lower if row is not None else next((name for name in _OFTEN_BARE if same(name, lower)), None)
    if bare is not None:
        raise _not_ours(name, f"Kafka's properties take a prefix: {PREFIX}{bare}{_instead(bare)}")
    applying = [*options, *property_names(role)]
    refuse_other_name(name, applying)
    like = closest_match(lower, applying)
    if like is not None:
        raise _not_ours(name, f"did you mean {like}?")
    if lower.startswith("schema.registry."):
        return "a registry is used with keyFormat or valueFormat confluent-avro, glue-avro, and so on"
    return "it is not an option of this source and sink"


def property_names(role: Role) -> list[str]:
    """Return the names of Kafka's properties that apply to clients of `role`, with their prefix."""
    return [PREFIX + row.name for row in PROPERTIES if _applies(row, role)]


def refuse_other_name(name: str, applying: Collection[str]) -> None:
    """Raise `ConfigurationError` for another name of one of the options `applying`, with or without `kafka.`."""
    bare = name.lower().removeprefix(PREFIX)
    for option in applying:
        names = (option, *_OTHER_NAMES.get(option, "").split())
        if any(same(bare, name) for name in names):
            raise _not_ours(name, f"did you mean {option}?")


def _applies(row: Property, role: Role) -> bool:
    return row.effect is Effect.APPLIES and bool(row.role & (role | Role.CLIENT))


def _instead(name: str) -> str:
    return ". Without a group, startingOffsets says where to begin" if name == "auto.offset.reset" else ""


def _not_ours(name: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is not an option of this source and sink; {hint}", name=name)
