"""Subscriptions and assignments of consumers: a version and a struct inside byte fields."""

from __future__ import annotations

import pytest

from protocol.errors import Corrupt, Truncated
from protocol.wire.consumer_metadata import ASSIGNMENT, LAST_VERSION, SUBSCRIPTION, decode_versioned, encode_versioned
from protocol.wire.schema import Field, Struct

OWNED = {"topic": "t", "partitions": [0, 2]}


def test_subscription_equals_the_java_consumers() -> None:
    value = {"topics": ["t"], "user_data": b"u", "owned_partitions": [OWNED], "generation_id": 5, "rack_id": "r"}
    expected = bytes.fromhex(
        "0003"  # version
        "00000001 0001 74"  # topics
        "00000001 75"  # user data
        "00000001 0001 74 00000002 00000000 00000002"  # owned partitions
        "00000005"  # generation
        "0001 72"  # rack
    )
    assert encode_versioned(SUBSCRIPTION, 3, value) == expected
    assert decode_versioned(SUBSCRIPTION, LAST_VERSION, expected) == (3, value)


def test_subscription_equals_aiokafkas() -> None:
    coordinator = pytest.importorskip("aiokafka.coordinator.protocol")
    reference = coordinator.ConsumerProtocolMemberMetadata(0, ["a", "b"], b"data").encode()
    value = {"topics": ["a", "b"], "user_data": b"data"}
    assert encode_versioned(SUBSCRIPTION, 0, value) == reference
    version, decoded = decode_versioned(SUBSCRIPTION, LAST_VERSION, reference)
    assert (version, decoded["topics"], decoded["user_data"]) == (0, ["a", "b"], b"data")


def test_newer_version_is_read_as_the_newest_known_with_extra_bytes() -> None:
    data = b"\0\x09" + encode_versioned(ASSIGNMENT, 3, {"assigned_partitions": [OWNED]})[2:] + b"more"
    assert decode_versioned(ASSIGNMENT, LAST_VERSION, data) == (9, {"assigned_partitions": [OWNED], "user_data": None})


def test_newer_version_has_the_schema_of_the_newest_known() -> None:
    schema = Struct(Field("in_the_newest_known", "int8", until=LAST_VERSION))
    assert decode_versioned(schema, LAST_VERSION, b"\0\x09\x05") == (9, {"in_the_newest_known": 5})


def test_invalid_bytes_are_protocol_errors() -> None:
    data = encode_versioned(ASSIGNMENT, 3, {"assigned_partitions": [OWNED]})
    for cut in range(len(data)):
        with pytest.raises(Truncated):
            decode_versioned(ASSIGNMENT, LAST_VERSION, data[:cut])
    with pytest.raises(Corrupt):
        decode_versioned(ASSIGNMENT, LAST_VERSION, b"\xff\xff" + data[2:])
