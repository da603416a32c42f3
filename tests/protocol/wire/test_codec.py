"""The codec on small schemas defined here, the choice of a version, and metadata of consumers inside byte fields."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Corrupt, Truncated, UnsupportedVersion, UsageError
from protocol.wire.codec import decoder, encoder, require_end
from protocol.wire.consumer_metadata import ASSIGNMENT, LAST_VERSION, SUBSCRIPTION, decode_versioned, encode_versioned
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.primitives import Reader, Writer
from protocol.wire.schema import NO_UUID, Array, Field, Struct, choose_version

INNER = Struct(Field("id", "int32", default=-1), Field("note", "string", nullable_since=0, default=None))
THING = Struct(
    Field("number", "int32"),
    Field("flag", "bool", default=True),
    Field("name", "string"),
    Field("uuid", "uuid"),
    Field("numbers", Array("int64")),
    Field("inner", INNER, since=1),
    Field("maybe", INNER, since=1, nullable_since=1, default=None),
    Field("many", Array(INNER), since=1, nullable_since=2),
    Field("old", "int16", until=0, default=7),
    Field("hint", "string", since=2, ignorable=True),
    Field("late", "int8", since=2, tag=1, tag_since=2, default=-1),
    Field("tagged", INNER, since=2, tag=0, tag_since=2),
)
NAMES = [field.name for field in THING.fields]


def encoded(value: dict[str, Any], version: int = 1, flexible: bool = False) -> bytes:
    writer = Writer()
    encoder(THING, version, flexible)(writer, value)
    return b"".join(writer.parts())


def decode(schema: Struct, version: int, flexible: bool, data: bytes) -> dict[str, Any]:
    """Decode the struct that fills `data` exactly."""
    reader = Reader(data)
    value: dict[str, Any] = decoder(schema, version, flexible)(reader)
    require_end(reader)
    return value


def round_trip(value: dict[str, Any], version: int = 1, flexible: bool = False) -> dict[str, Any]:
    return decode(THING, version, flexible, encoded(value, version, flexible))


def test_missing_keys_have_defaults_and_fields_are_decoded_in_order() -> None:
    value = round_trip({})
    assert list(value) == NAMES
    assert value == {
        "number": 0, "flag": True, "name": "", "uuid": NO_UUID, "numbers": [], "inner": {"id": -1, "note": None},
        "maybe": None, "many": [], "old": 7, "hint": "", "late": -1, "tagged": {"id": -1, "note": None},
    }  # fmt: skip


def test_decoded_defaults_are_not_shared_between_values() -> None:
    data = encoded({}, version=0)
    first, second = decode(THING, 0, False, data), decode(THING, 0, False, data)
    first["inner"]["id"] = 5
    first["many"].append({})
    assert second["inner"] == {"id": -1, "note": None}
    assert second["many"] == []
    assert decode(THING, 0, False, data)["many"] == []


def test_value_for_a_field_missing_in_the_version_is_refused() -> None:
    with pytest.raises(UsageError, match="version 0 has no field inner"):
        encoded({"inner": {"id": 1}}, version=0)
    with pytest.raises(UsageError, match="version 1 has no field old"):
        encoded({"old": 8}, version=1)


@pytest.mark.parametrize(
    ("value", "version"), [({"inner": {"id": -1}, "many": []}, 0), ({"old": 7}, 1), ({"hint": "dropped"}, 1)]
)
def test_default_or_ignorable_value_for_a_field_missing_in_the_version_is_dropped(
    value: dict[str, Any], version: int
) -> None:
    assert encoded(value, version=version) == encoded({}, version=version)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        *(({"number": wrong}, "number") for wrong in (None, 2**31, "1")),
        *(({"name": wrong}, "name") for wrong in (None, b"bytes", "\ud800")),
        *(({"uuid": wrong}, "uuid") for wrong in (b"short", "x" * 16)),
        *(({"numbers": wrong}, "numbers") for wrong in ([1, "2"], {1: 2}, 5)),
        *(({"inner": wrong}, "inner") for wrong in (None, [])),
        *(({"many": wrong}, "many") for wrong in (None, [None])),
        ({"inner": {"id": 2**40}}, "inner.id"),
        ({"many": [{"note": 5}]}, "many.note"),
    ],
)
def test_invalid_value_is_refused_with_the_path_of_its_field(value: dict[str, Any], path: str) -> None:
    with pytest.raises(UsageError, match=path.replace(".", r"\.")):
        encoded(value)


@pytest.mark.parametrize("size_and_content", [b"\x02\x05\x00", b"\x00"])
def test_tagged_field_with_a_wrong_size_is_corrupt(size_and_content: bytes) -> None:
    bare = encoded({}, version=2, flexible=True)
    with pytest.raises(Corrupt):
        decode(THING, 2, True, bare[:-1] + b"\x01\x01" + size_and_content)


@pytest.mark.parametrize(
    ("flexible", "count_of_ten", "smallest_bytes"),
    [(False, b"\0\0\0\x0a", 4 + 2), (True, b"\x0b", 4 + 1 + 1)],  # id, note, section of tagged fields
)
def test_count_of_structs_that_cannot_fit_is_refused_first(
    flexible: bool, count_of_ten: bytes, smallest_bytes: int
) -> None:
    many = Struct(Field("many", Array(INNER)))
    with pytest.raises(Truncated, match=f"10 elements of at least {smallest_bytes} bytes"):
        decode(many, 0, flexible, count_of_ten + bytes(10 * smallest_bytes - 1))


def test_remaining_bytes_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="1 bytes too many"):
        decode(THING, 1, False, encoded({}) + b"\0")


@pytest.mark.parametrize(
    ("broker", "needs", "expected"),
    [
        ((0, 11), {}, 11),
        ((0, 99), {}, 18),
        ((4, 4), {}, 4),
        ((18, 30), {}, 18),
        ((0, 17), {"at_most": 12}, 12),
        ((0, 17), {"at_least": 13}, 17),
        ((0, 17), {"at_least": 17, "at_most": 17}, 17),
    ],
)
def test_highest_common_version_is_chosen(broker: tuple[int, int], needs: dict[str, int], expected: int) -> None:
    assert choose_version(FETCH, {1: broker}, **needs) == expected


@pytest.mark.parametrize(
    ("broker", "needs", "parts"),
    [
        ({1: (0, 3)}, {}, ["Fetch", "v4 to v18", "v0 to v3"]),
        ({1: (19, 20)}, {}, ["v4 to v18", "the broker v19 to v20"]),
        ({1: (0, 11)}, {"at_least": 13}, ["the broker (Kafka 2.3 to 2.6) v0 to v11", "needs v13 or later"]),
        ({1: (13, 17)}, {"at_most": 12}, ["v13 to v17", "needs v12 or earlier"]),
        ({1: (0, 17)}, {"at_least": 14, "at_most": 12}, ["needs v14 or later and v12 or earlier"]),
        ({0: (0, 9), 3: (0, 13)}, {}, ["does not support Fetch (API key 1); this client supports v4 to v18$"]),
        ({0: (0, 9)}, {}, ["does not support Fetch", "key 1", "port of a KRaft controller"]),
    ],
)
def test_version_mismatch_error_has_all_ranges(
    broker: dict[int, tuple[int, int]], needs: dict[str, int], parts: list[str]
) -> None:
    with pytest.raises(UnsupportedVersion) as raised:
        choose_version(FETCH, broker, **needs)
    for words in parts:
        assert words in f"{raised.value}$"


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
