"""The configuration of consumers in a group: `ConsumerConfig`, the offset reset, and automatic commits.

These properties are parsed here because a Spark query refuses them: the query commits its own offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from protocol.config import ConsumerConfig, OffsetReset, parse_consumer
from protocol.properties import BY_NAME, read
from protocol.settings.property_kinds import (
    BOOLEAN,
    POSITIVE_MILLISECONDS,
    Kind,
    Role,
    applies,
    integer,
    iso_duration_us,
)
from protocol.settings.secret import hide_variables

_BY_DURATION = "by_duration:"


def _reset(text: str) -> OffsetReset | timedelta:
    words: dict[str, OffsetReset] = {"earliest": "earliest", "latest": "latest", "none": "none"}
    if text.lower() in words:
        return words[text.lower()]
    if not text.lower().startswith(_BY_DURATION):
        raise ValueError
    return timedelta(microseconds=iso_duration_us(text[len(_BY_DURATION) :]))


_RESET = Kind("earliest, latest, none, by_duration:PnDTnHnMn.nS", _reset)


@dataclass(frozen=True)
class GroupConsumerConfig:
    """The configuration of a consumer in a group, or one that polls.

    `auto_offset_reset`: the start offset of partitions without a committed offset. A duration means that time before
    now (KIP-1106).
    `enable_auto_commit`: commit positions automatically, every `auto_commit_interval_ms`.
    `max_poll_records`: maximum number of records of a poll; None: whole record batches.
    `group_join_retries`: maximum number of retries of a join before its error is raised; None: no limit.
    """

    consumer: ConsumerConfig
    auto_offset_reset: OffsetReset | timedelta = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    # Java's 500 would cut columns of thousands of rows: docs/decisions/0031-max-poll-records.md.
    max_poll_records: int | None = None
    group_join_retries: int | None = None


GROUP_PROPERTIES = (
    applies(
        Role.CONSUMER,
        "auto.offset.reset",
        _RESET,
        "the start in a partition without a committed offset; none: an error. A duration is counted back from now "
        "(KIP-1106)",
    ),
    applies(Role.CONSUMER, "enable.auto.commit", BOOLEAN, "commit the positions of processed records at intervals"),
    applies(Role.CONSUMER, "auto.commit.interval.ms", POSITIVE_MILLISECONDS, "the interval of these commits"),
    applies(
        Role.CONSUMER,
        "max.poll.records",
        integer(1),
        "the most records of one poll, or of one record batch of a claim. By default a poll returns whole record "
        "batches, of a few thousand records; Java's default is 500",
    ),
    applies(
        Role.CONSUMER,
        "group.join.retries",
        integer(0),
        "the most retries of a join before `poll` or `consume` raises its error; the next call continues to join. By "
        "default no limit, as in Java (a property of this client, not of Kafka; sarama's "
        "Consumer.Group.Rebalance.Retry.Max)",
    ),
)
"""Properties of consumers that commit automatically or retry joins; a Spark query refuses them."""


@hide_variables
def parse_group_consumer(properties: Mapping[str, object]) -> GroupConsumerConfig:
    """Parse the properties of a consumer in a group; raise `ConfigurationError` for an unknown or invalid one.

    As in Java, the defaults are the classic protocol if `group.id` is set, and automatic commits every five seconds.
    """
    rows = {row.name: row for row in GROUP_PROPERTIES}
    # An unknown name may be a misspelling of one of these rows.
    own = {name: value for name, value in properties.items() if name in rows or name not in BY_NAME}
    values = {name: value for name, value in properties.items() if name not in own}
    membership = {"group.protocol": "classic"} if "group.id" in properties else {}
    fields = read(own, Role.CONSUMER, {**BY_NAME, **rows})
    return GroupConsumerConfig(parse_consumer({**membership, **values}), **fields)
