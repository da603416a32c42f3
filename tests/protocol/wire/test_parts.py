"""Analysis of message schemas: fields with error codes, the subject of rows, the coordinator key of a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import UsageError
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.parts import error_parts, partition_request
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api, Array, Route, Struct
from tests.protocol.wire.kafka_facts import KAFKA, case_id, snake_case


def with_codes(struct: Struct, numbers: Iterator[int]) -> dict[str, Any]:
    """Return a reply with one row in each array, and a distinct number in each field that may be an error code."""
    value: dict[str, Any] = {}
    for field in struct.fields:
        if field.name.endswith("error_code"):
            value[field.name] = next(numbers)
        elif isinstance(field.type, Array) and isinstance(field.type.of, Struct):
            value[field.name] = [with_codes(field.type.of, numbers)]
        elif isinstance(field.type, Struct):
            value[field.name] = with_codes(field.type, numbers)
        else:
            value[field.name] = field.name if field.type == "string" else field.default_value()
    return value


def codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from codes(each)
    if isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("error_code") and name != "topic_config_error_code":
                yield each
            yield from codes(each)


# Replies whose rows are in the order of the request, or are about an entity of several fields.
_WITHOUT_SUBJECT = {"CreateAcls", "DeleteAcls", "AlterClientQuotas"}


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_error_codes_of_a_reply_are_all_found(api: Api) -> None:
    reply = with_codes(api.response, iter(range(1, 100)))
    parts = list(error_parts(api, reply))
    assert sorted(part.code for part in parts) == sorted(codes(reply))
    if api.name not in _WITHOUT_SUBJECT:
        assert all(part.context for part in parts if part.fields is not reply), "each row names its subject"


def test_part_has_its_subject_and_the_brokers_message() -> None:
    rows = [{"name": "orders", "error_code": 36, "error_message": "Topic 'orders' already exists."}]
    (part,) = error_parts(CREATE_TOPICS, {"topics": rows})
    assert (part.code, part.message, part.name, part.partition) == (36, rows[0]["error_message"], "orders", None)
    offsets = {"topics": [{"topic": "orders", "partitions": [{"partition": 3, "error_code": 0}]}]}
    (part,) = error_parts(OFFSET_FOR_LEADER_EPOCH, offsets)
    context = {"topic": "orders", "partition": 3}
    assert (part.context, part.name, part.partition) == (context, "orders-3", ("orders", 3))


def test_partitions_are_placed_in_a_request_by_its_definition() -> None:
    times = {("a", 0): {"timestamp": 5}, ("b", 1): {}, ("a", 2): {"timestamp": 6}}
    rows = [{"partition_index": 0, "timestamp": 5}, {"partition_index": 2, "timestamp": 6}]
    assert partition_request(LIST_OFFSETS, {"replica_id": -1}, times) == {
        "replica_id": -1,
        "topics": [{"name": "a", "partitions": rows}, {"name": "b", "partitions": [{"partition_index": 1}]}],
    }
    assert partition_request(OFFSET_FOR_LEADER_EPOCH, {}, {("a", 0): {"leader_epoch": 5}}) == {
        "topics": [{"topic": "a", "partitions": [{"partition": 0, "leader_epoch": 5}]}]
    }
    with pytest.raises(UsageError, match="JoinGroup is not about partitions"):
        partition_request(JOIN_GROUP, {}, {("a", 0): {}})


# -- the group or transactional id of a request ---------------------------------------------------

ENTITIES = {Route.GROUP: "groupId", Route.TRANSACTION: "transactionalId"}


@pytest.mark.parametrize("api", [api for api in API_BY_KEY.values() if api.route in ENTITIES], ids=case_id)
def test_coordinator_key_field_is_kafkas_group_or_transactional_id(api: Api) -> None:
    fields = {snake_case(field["name"]): field for field in KAFKA[api.name]["request"]}
    key_fields = [name for name, field in fields.items() if field.get("entity") == ENTITIES[api.route]]
    for name in key_fields:
        value = ["mine"] if fields[name]["type"].startswith("[]") else "mine"
        assert api.coordinator_key({name: value}) == "mine"
    assert len(key_fields) == 1


MISSING = "is missing or empty, and the coordinator cannot be found without it"


@pytest.mark.parametrize(
    ("api", "body", "message"),
    [
        (DESCRIBE_GROUPS, {"groups": ["a", "b"]}, "DescribeGroups: groups must have one element"),
        (DESCRIBE_GROUPS, {"groups": []}, f"DescribeGroups: groups {MISSING}"),
        (DESCRIBE_GROUPS, {}, f"DescribeGroups: groups {MISSING}"),
        (ADD_PARTITIONS_TO_TXN, {}, f"AddPartitionsToTxn: v3_and_below_transactional_id {MISSING}"),
    ],
)
def test_request_without_one_coordinator_key_is_refused(api: Api, body: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        api.coordinator_key(body)


def test_producer_without_transactions_needs_no_coordinator() -> None:
    assert INIT_PRODUCER_ID.coordinator_key({"transactional_id": None}) is None
    assert LIST_OFFSETS.coordinator_key({}) is None
