"""Rules of data contracts: those that change values are refused, others are a warning. Confluent's client judges."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.rule_registry import RuleRegistry
from confluent_kafka.schema_registry.serde import RuleExecutor
from confluent_kafka.serialization import MessageField, SerializationContext

from protocol.base.once import deferred_warnings
from protocol.errors import ConfigurationError
from protocol.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry
from protocol.schemas.rules import Use, parse_rules, refuse_rules
from protocol.schemas.values import ColumnDecoder, choose_schema
from protocol.testing.schema_registry import FakeSchemaRegistry
from tests.protocol.schemas.conftest import SUBJECT, decoded

FIRST = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
SECOND = FIRST.replace("]", ', {"name": "note", "type": "string", "default": ""}]')
USES: tuple[Use, ...] = ("READ", "WRITE", "UPGRADE", "DOWNGRADE")


def rule_set(group: str = "domainRules", **fields: Any) -> dict[str, Any]:
    rule = {"name": "hidePII", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT", "tags": ["PII"]}
    return {group: [{**rule, "params": {"encrypt.kek.name": "kek"}, "onFailure": "ERROR,NONE", **fields}]}


CHECK = {"kind": "CONDITION", "type": "CEL", "expr": "size(message.note) > 0", "doc": "no empty notes"}


class Recorder(RuleExecutor):
    """An executor of Confluent's client that leaves values as they are, and records how rules were applied."""

    def __init__(self) -> None:
        self.uses: set[str] = set()

    def type(self) -> str:
        return "RECORDER"

    def transform(self, ctx: Any, message: Any) -> Any:
        self.uses.add(ctx.rule_mode.value)
        return message


@pytest.mark.parametrize(
    "rules",
    [
        *(rule_set("domainRules", mode=mode) for mode in ("READ", "WRITE", "WRITEREAD")),
        *(rule_set("encodingRules", mode=mode) for mode in ("READ", "WRITE", "WRITEREAD")),
        *(rule_set("migrationRules", mode=mode) for mode in ("UPGRADE", "DOWNGRADE", "UPDOWN")),
        rule_set(disabled=True),
        rule_set(disabled=False),
        *({**rule_set(), "enableAt": environment} for environment in ("ALL", "CLIENT", "GATEWAY", "NONE")),
    ],
    ids=json.dumps,
)
def test_rules_concern_the_uses_in_which_confluents_client_applies_them(
    server: FakeSchemaRegistry, rules: dict[str, Any]
) -> None:
    for group in {*rules} - {"enableAt"}:
        rules[group][0]["type"] = "RECORDER"
    first_id = server.register(SUBJECT, FIRST)
    server.register(SUBJECT, SECOND, rule_set=rules)
    client, recorder, executors = SchemaRegistryClient({"url": server.url}), Recorder(), RuleRegistry()
    executors.register_executor(recorder)
    context = SerializationContext("orders", MessageField.VALUE)
    latest = {"use.latest.version": True}
    write = AvroSerializer(client, SECOND, conf={**latest, "auto.register.schemas": False}, rule_registry=executors)
    new, old = write({"id": 1, "note": "x"}, context), b"\0" + first_id.to_bytes(4, "big") + b"\x02"
    for value, reader_id in ((new, None), (old, None), (new, first_id)):
        read = AvroDeserializer(client, conf=latest, rule_registry=executors)
        read._use_schema_id = reader_id
        read(value, context)
    assert {use for rule in parse_rules(rules) for use in USES if rule.concerns(use)} == recorder.uses


@pytest.mark.parametrize(
    ("rules", "refused_uses"),
    [
        (rule_set(), {"READ", "WRITE"}),
        (rule_set(mode="WRITE"), {"READ", "WRITE"}),  # a reader finds ciphertext
        (rule_set(mode="WRITE", type="CEL_FIELD"), {"WRITE"}),
        (rule_set(mode="READ", type="CEL_FIELD"), {"READ"}),
        (rule_set(kind="CONDITION"), {"READ", "WRITE"}),
        (rule_set("encodingRules", type="ENCRYPT_PAYLOAD"), {"READ", "WRITE"}),
        (rule_set("encodingRules", **CHECK), {"READ", "WRITE"}),
        (rule_set("migrationRules", type="JSONATA", mode="UPGRADE"), {"UPGRADE"}),
        (rule_set("migrationRules", type="JSONATA", mode=None, kind=None), {"UPGRADE", "DOWNGRADE"}),
        (rule_set(type=None, kind=None, mode=None), {"READ", "WRITE"}),
        (rule_set(**CHECK), set()),
    ],
)
def test_rules_that_change_values_are_refused(rules: dict[str, Any], refused_uses: set[str]) -> None:
    for use in USES:
        expected = pytest.raises(ConfigurationError, match=r"^version 1 has rules .* change values: hidePII \(")
        with expected if use in refused_uses else deferred_warnings():
            refuse_rules(parse_rules(rules), (use,), "version 1")


def test_rule_that_only_validates_is_a_warning(server: FakeSchemaRegistry, registry: SchemaRegistry) -> None:
    server.register(SUBJECT, SECOND, rule_set=rule_set(**CHECK))
    with deferred_warnings() as warnings:
        assert choose_schema("confluent-avro", registry, SUBJECT).version == 1
    assert warnings == [
        "version 1 of the subject orders-value has rules that are not checked here: "
        "hidePII (domainRules, kind CONDITION, type CEL, mode WRITEREAD)"
    ]


def test_record_of_a_later_version_with_rules_does_not_decode(
    server: FakeSchemaRegistry, registry: SchemaRegistry
) -> None:
    server.register(SUBJECT, FIRST)
    decoder = ColumnDecoder(choose_schema("confluent-avro", registry, SUBJECT), registry)
    server.register(SUBJECT, SECOND, rule_set=rule_set())
    server.register(SUBJECT, SECOND, rule_set=rule_set("migrationRules", type="JSONATA", mode="DOWNGRADE"))
    server.register(SUBJECT, SECOND, rule_set={})
    contents = (b"\x02", *[b"\x02\x02x"] * 3)
    values = [b"\0" + schema_id.to_bytes(4, "big") + content for schema_id, content in enumerate(contents, 1)]
    rows, errors = decoded(decoder, values)
    assert rows == [{"id": 1}, None, None, {"id": 1}]
    assert [error.partition(" (")[0].partition(": ")[2] for error in errors] == [
        f"the schema with the id {schema_id} has rules that are not applied here, and that change values: hidePII"
        for schema_id in (2, 3)
    ]


def test_rules_of_a_referenced_schema_do_not_count(server: FakeSchemaRegistry, registry: SchemaRegistry) -> None:
    """Serialisers apply the rules of the subject's schema alone."""
    server.register("note", '{"type": "enum", "name": "Note", "symbols": ["X"]}', rule_set=rule_set())
    reference = SchemaReference("Note", "note", 1)
    uses_note = SECOND.replace('"string", "default": ""', '"Note"')
    registry.register(SUBJECT, RegisteredSchema(uses_note, references=(reference,)))
    assert choose_schema("confluent-avro", registry, SUBJECT).version == 1


def test_double_passes_rules_on_to_the_next_version(server: FakeSchemaRegistry, registry: SchemaRegistry) -> None:
    server.register(SUBJECT, FIRST)
    server.register(SUBJECT, FIRST, rule_set=rule_set())
    assert registry.lookup(SUBJECT, RegisteredSchema(FIRST)).version == 1
    registry.register(SUBJECT, RegisteredSchema(SECOND))
    latest = registry.lookup(SUBJECT, RegisteredSchema(SECOND))
    assert (latest.version, [rule.name for rule in latest.rules]) == (3, ["hidePII"])
    assert registry.by_id(3).rules == registry.by_guid(str(latest.guid)).rules == latest.rules
    confluents = SchemaRegistryClient({"url": server.url}).get_latest_version(SUBJECT).schema
    assert json.loads(json.dumps(confluents.to_dict()))["ruleSet"]["domainRules"][0]["name"] == "hidePII"
