"""Older message versions for handlers that speak the newest: requests and replies whose layout changed.

librdkafka and older Java clients send them. A field that a version lacks has its default in a request, and is removed
from a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m20_delete_topics import DELETE_TOPICS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m25_add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.schema import Api, Array, Struct

# First version with the code PRODUCER_FENCED; earlier ones have INVALID_PRODUCER_EPOCH instead.
_FIRST_FENCED = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}


def newest_request(api: Api, version: int, body: Body) -> Body:
    """Return a decoded request in the layout of the newest version."""
    if api is METADATA and version == 0 and not body["topics"]:
        return {**body, "topics": None}
    if api is FIND_COORDINATOR and version < 4:
        return {**body, "coordinator_keys": [body["key"]]}
    if api is OFFSET_FETCH and version < 8:
        return {**body, "groups": [{"group_id": body["group_id"], "topics": body["topics"]}]}
    if api is LEAVE_GROUP and version < 3:
        return {**body, "members": [{"member_id": body["member_id"], "group_instance_id": None}]}
    if api is DELETE_TOPICS and version < 6:
        return {**body, "topics": [{"name": name, "topic_id": None} for name in body["topic_names"]]}
    return body


def reply_in(api: Api, version: int, reply: Body) -> Body:
    """Return a handler's reply in the layout of `version`."""
    if version == api.last:
        return reply
    if api is FIND_COORDINATOR and version < 4:
        reply = {key: value for key, value in reply["coordinators"][0].items() if key != "key"}
    elif api is OFFSET_FETCH and version < 8:
        group = {key: value for key, value in reply["groups"][0].items() if key != "group_id"}
        topics = [{"name": row["name"], "partitions": row["partitions"]} for row in group.get("topics", ())]
        reply = {**group, "topics": topics}
    elif api is LEAVE_GROUP and version < 3 and reply.get("members"):
        reply = {"error_code": reply["members"][0]["error_code"]}
    elif api is DESCRIBE_GROUPS and version < 6:
        reply = {**reply, "groups": [_group_before_v6(row) for row in reply["groups"]]}
    if version < _FIRST_FENCED.get(api, 0):
        reply = _replaced(reply, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    prune = _pruner(api.response, version)
    return prune(reply) if prune else reply


def _group_before_v6(row: Body) -> Body:
    """Return an unknown group as an empty one in the state Dead, as brokers did before GROUP_ID_NOT_FOUND."""
    unknown = row["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    return {**row, "error_code": ErrorCode.NONE} if unknown else row


def _replaced(value: Any, code: int, by: int) -> Any:
    """Return a reply with another error code in each of its rows."""
    if isinstance(value, list):
        return [_replaced(element, code, by) for element in value]
    if isinstance(value, dict):
        return {
            key: by if key.endswith("error_code") and element == code else _replaced(element, code, by)
            for key, element in value.items()
        }
    return value


@cache
def _pruner(schema: Struct, version: int) -> Callable[[Mapping[str, Any]], Body] | None:
    """Return a function that removes the fields a version lacks; None if it has all."""
    absent = {field.name for field in schema.fields if not field.present(version)}
    nested: dict[str, tuple[bool, Callable[[Mapping[str, Any]], Body]]] = {}
    for field in schema.fields:
        many, kind = isinstance(field.type, Array), field.type
        if isinstance(kind, Array):
            kind = kind.of
        prune = _pruner(kind, version) if isinstance(kind, Struct) and field.name not in absent else None
        if prune is not None:
            nested[field.name] = many, prune
    if not absent and not nested:
        return None

    def prune_struct(value: Mapping[str, Any]) -> Body:
        pruned = {}
        for name, field_value in value.items():
            if name in absent:
                continue
            if name in nested and field_value is not None:
                many, prune = nested[name]
                field_value = [prune(row) for row in field_value] if many else prune(field_value)
            pruned[name] = field_value
        return pruned

    return prune_struct
