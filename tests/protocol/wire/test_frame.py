"""Frames: headers, sizes, zero copy, the special case of ApiVersions, and the cost of imports and large metadata."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from time import thread_time
from typing import Any

import pytest

from protocol.errors import Truncated, UnsupportedVersion
from protocol.wire.frame import (
    correlation_id,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    size_bytes,
)
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.primitives import BytesLike
from tests.support.hostile import tracing


def body_of(parts: list[BytesLike]) -> bytes:
    """Return the frame without its size, after checking the size."""
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize("records", [b"", b"r" * 10_000], ids=["one buffer", "several buffers"])
def test_size_of_a_request_counts_every_byte_on_the_wire(records: bytes) -> None:
    """The metrics `request-size` and `outgoing-byte` count this size."""
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    buffers = encode_request(PRODUCE, 3, 9, "me", {"acks": 1, "timeout_ms": 1, "topic_data": topics})
    assert size_bytes(buffers) == len(b"".join(buffers)) > len(records)


def test_correlation_id_is_read_without_the_api() -> None:
    assert correlation_id(body_of(encode_response(METADATA, 9, 77, {}))) == 77
    with pytest.raises(Truncated):
        correlation_id(b"\0\0\0")


def test_tagged_fields_in_a_response_header_are_skipped() -> None:
    frame = body_of(encode_response(METADATA, 9, 5, {"controller_id": 8}))
    with_tag = frame[:4] + b"\x01\x05\x03xyz" + frame[5:]
    assert decode_response(METADATA, 9, with_tag)["controller_id"] == 8


@pytest.mark.parametrize("requested", [1, 3, 4])
def test_unsupported_api_versions_request_is_answered_in_version_0(requested: int) -> None:
    ranges = [{"api_key": 18, "min_version": 0, "max_version": 2}]
    answer = body_of(encode_response(API_VERSIONS, 0, 1, {"error_code": 35, "api_keys": ranges}))
    decoded = decode_response(API_VERSIONS, requested, answer)
    assert decoded["error_code"] == 35
    assert decoded["api_keys"] == ranges
    assert decoded["finalized_features_epoch"] == -1


def _produce(records: Any) -> dict[str, Any]:
    return {"acks": -1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]}


@pytest.mark.parametrize("version", [3, 12])
def test_large_records_are_sent_without_a_copy(version: int) -> None:
    records = bytearray(1 << 20)
    parts = encode_request(PRODUCE, version, 1, "me", _produce(records))
    assert any(isinstance(part, memoryview) and part.obj is records for part in parts)
    assert decode_request(body_of(parts))[4]["topic_data"][0]["partition_data"][0]["records"] == records


@pytest.mark.parametrize("version", [4, 12, 17])
def test_fetched_records_are_views_of_the_frame(version: int) -> None:
    records = bytes(range(256)) * 4096
    partition = {"partition_index": 0, "records": records}
    frame = bytearray(body_of(encode_response(FETCH, version, 1, {"responses": [{"partitions": [partition]}]})))
    with tracing():
        decoded = decode_response(FETCH, version, frame)["responses"][0]["partitions"][0]["records"]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    assert decoded == records
    assert decoded.obj is frame
    assert peak_bytes < len(records) // 4


@pytest.mark.parametrize("version", [3, 19])
def test_unsupported_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match="v4 to v18"):
        encode_request(FETCH, version, 1, "me", {})
    with pytest.raises(UnsupportedVersion):
        decode_response(FETCH, version, bytes(100))


@pytest.mark.parametrize(("key", "version"), [(1, 99), (999, 0), (18, 9)])
def test_unsupported_request_error_has_the_fields_to_answer_it(key: int, version: int) -> None:
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x2a\xff\xff" + b"whatever"
    with pytest.raises(UnsupportedVersion) as raised:
        decode_request(frame)
    assert raised.value.context == {"api_key": key, "version": version, "correlation_id": 42}


MAY_NOT_BE_IMPORTED = {"socket", "ssl", "asyncio", "numpy", "pyarrow", "json", "logging"}


def test_importing_wire_loads_only_the_messages_used() -> None:
    code = """
import sys
before = set(sys.modules)
import protocol.wire.frame, protocol.wire.schema
from protocol.wire.messages.m01_fetch import FETCH
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    assert "protocol.wire.messages.m01_fetch" in imported
    assert not imported & MAY_NOT_BE_IMPORTED
    assert [name for name in imported if name.startswith("protocol.wire.messages.m")] == [
        "protocol.wire.messages.m01_fetch"
    ]


def test_metadata_of_a_thousand_partitions_is_decoded_in_milliseconds() -> None:
    partitions: list[dict[str, Any]] = [
        {"partition_index": i, "leader_id": i % 3, "replica_nodes": [1, 2, 3], "isr_nodes": [1, 2, 3]}
        for i in range(1000)
    ]
    body = {"topics": [{"name": "t", "partitions": partitions}]}
    frame = b"".join(encode_response(METADATA, 12, 1, body))[4:]

    def seconds() -> float:
        start = thread_time()
        assert len(decode_response(METADATA, 12, frame)["topics"][0]["partitions"]) == 1000
        return thread_time() - start

    # Takes about 3 ms of CPU time; the bound allows for a busy machine, not for a slower decoder.
    assert min(seconds() for _ in range(20)) < 0.020
