"""The cost of wire: importing messages is cheap, and large metadata is decoded in milliseconds."""

from __future__ import annotations

import subprocess
import sys
from time import thread_time
from typing import Any

from protocol.wire.frame import decode_response, encode_response
from protocol.wire.messages.m03_metadata import METADATA

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
