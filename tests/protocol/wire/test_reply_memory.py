"""What a reply may take in memory: honest ones of any size, and not many times as much because its rows are small."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from protocol.errors import Corrupt
from protocol.wire import primitives
from protocol.wire.frame import decode_response, encode_response
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api, Array, Field, Struct, Type
from tests.protocol.wire.test_hostile_replies import uvarint

MIB = 1 << 20


def peak_bytes(api: Api, version: int, frame: bytes) -> tuple[bool, int]:
    """Whether the frame is taken, and the memory that takes."""
    tracemalloc.start()
    try:
        decode_response(api, version, frame)
        taken = True
    except Corrupt:
        taken = False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return taken, peak


# -- the smallest rows ----------------------------------------------------------------------------


def smallest(kind: Type, version: int, flexible: bool) -> bytes:
    if isinstance(kind, Struct):
        return b"".join(smallest_field(field, version, flexible) for field in sent(kind, version)) + b"\0" * flexible
    if isinstance(kind, Array) or kind in ("bytes", "records"):
        return b"\1" if flexible else bytes(4)
    if kind == "string":
        return b"\1" if flexible else bytes(2)
    sizes = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int64": 8, "float64": 8, "uuid": 16}
    return bytes(sizes.get(kind, 4))


def smallest_field(field: Field, version: int, flexible: bool) -> bytes:
    if isinstance(field.type, Struct) and field.nullable(version):
        return b"\xff"
    return smallest(field.type, version, flexible)


def sent(kind: Struct, version: int) -> list[Field]:
    return [field for field in kind.fields if field.present(version) and not field.tagged(version)]


def replies_of_small_rows(api: Api, kind: Struct, size_bytes: int) -> list[bytes]:
    """For each array of the struct one body in which it alone has elements."""
    version, flexible = api.last, api.flexible(api.last)
    fields, bodies = sent(kind, version), []
    for nth, field in enumerate(fields):
        if not isinstance(field.type, Array):
            continue
        before = b"".join(smallest_field(one, version, flexible) for one in fields[:nth])
        after = b"".join(smallest_field(one, version, flexible) for one in fields[nth + 1 :]) + b"\0" * flexible
        row = smallest(field.type.of, version, flexible)
        arrays = [(size_bytes // len(row), row * (size_bytes // len(row)))]
        if isinstance(field.type.of, Struct):
            arrays += [(1, inner) for inner in replies_of_small_rows(api, field.type.of, size_bytes)]
        for count, rows in arrays:
            bodies.append(before + (uvarint(count + 1) if flexible else struct.pack(">i", count)) + rows + after)
    return bodies


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=lambda api: api.name)
def test_the_smallest_rows_take_what_is_allowed_or_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "SPARE_BYTES", MIB // 4)
    header = bytes(4) + b"\0" * (api.flexible(api.last) and api.name != "ApiVersions")
    for body in replies_of_small_rows(api, api.response, 20_000):
        frame = header + body
        decode_response(api, api.last, header + smallest(api.response, api.last, api.flexible(api.last)))
        _, peak = peak_bytes(api, api.last, frame)
        assert peak < primitives.ROOMY_RATIO * len(frame) + MIB // 4 + 50_000


def test_a_large_reply_of_nothing_but_small_rows_is_refused_before_anything_is_allocated() -> None:
    row = smallest(JOIN_GROUP.response.fields[-1].type.of, 9, True)  # type: ignore[union-attr]
    count = 10_000_000
    frame = b"".join(encode_response(JOIN_GROUP, 9, 1, {"protocol_name": ""}))[4:-2]
    taken, peak = peak_bytes(JOIN_GROUP, 9, frame + uvarint(count + 1) + row * count + b"\0")
    assert not taken
    assert peak < MIB


def test_the_rows_of_tagged_fields_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "ROOMY_RATIO", 0)
    names = [{"name": str(nth)} for nth in range(50)]
    one = b"".join(encode_response(API_VERSIONS, 3, 1, {"supported_features": names}))[4:]
    two = b"".join(encode_response(API_VERSIONS, 3, 1, {"supported_features": names, "finalized_features": names}))[4:]
    monkeypatch.setattr(primitives, "SPARE_BYTES", 30_000)
    assert len(decode_response(API_VERSIONS, 3, one)["supported_features"]) == 50
    with pytest.raises(Corrupt, match="memory"):
        decode_response(API_VERSIONS, 3, two)


# -- honest replies -------------------------------------------------------------------------------


def metadata(count: int) -> dict[str, Any]:
    nodes = [1001, 1002, 1003]
    row = {"leader_id": 1001, "leader_epoch": 300, "replica_nodes": nodes, "isr_nodes": nodes}
    return {"topics": [{"name": "orders", "partitions": [{**row, "partition_index": nth} for nth in range(count)]}]}


def fetch(count: int) -> dict[str, Any]:
    row = {"high_watermark": 10**12, "last_stable_offset": 10**12, "log_start_offset": 10**12}
    return {"responses": [{"partitions": [{**row, "partition_index": nth} for nth in range(count)]}]}


def offset_fetch(count: int) -> dict[str, Any]:
    row = {"committed_offset": 10**12, "committed_leader_epoch": 300, "metadata": ""}
    topic = {"name": "orders", "partitions": [{**row, "partition_index": nth} for nth in range(count)]}
    return {"groups": [{"group_id": "billing", "topics": [topic]}]}


def list_groups(count: int) -> dict[str, Any]:
    return {"groups": [{"group_id": f"g{nth}", "protocol_type": "", "group_state": "Empty"} for nth in range(count)]}


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (METADATA, 12, metadata(20_000)),
        (FETCH, 13, fetch(4_000)),
        (OFFSET_FETCH, 8, offset_fetch(20_000)),
        (LIST_GROUPS, 4, list_groups(20_000)),
    ],
    ids=["Metadata", "Fetch of 200,000", "OffsetFetch", "ListGroups"],
)
def test_a_fiftieth_of_a_million_honest_rows_fits_in_a_fiftieth_of_the_allowance(
    api: Api, version: int, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primitives, "SPARE_BYTES", primitives.SPARE_BYTES // 50)
    decode_response(api, version, b"".join(encode_response(api, version, 1, body))[4:])
