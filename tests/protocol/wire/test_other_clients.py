"""Compare encoded bytes with those of two other Python clients, which have independent encoders."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.wire.consumer_metadata import SUBSCRIPTION, encode_versioned
from protocol.wire.frame import decode_response, encode_request, encode_response
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.schema import Api

PARTITION = {"partition": 3, "current_leader_epoch": 4, "fetch_offset": 2**40, "partition_max_bytes": 1 << 20}
FETCH_BODY = {"max_wait_ms": 500, "min_bytes": 1, "isolation_level": 1, "rack_id": "r"}


def ours(api: Api, version: int, body: dict[str, Any]) -> bytes:
    return b"".join(encode_request(api, version, 9, "me", body))


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_fetch_request_equals_kafka_pythons(version: int) -> None:
    messages = pytest.importorskip("kafka.protocol.fetch")
    fields = {name: value for name, value in FETCH_BODY.items() if name != "rack_id" or version >= 11}
    reference = messages.FetchRequest[version](
        **fields,
        topics=[
            messages.FetchRequest.FetchTopic(
                topic="t", partitions=[messages.FetchRequest.FetchTopic.FetchPartition(**PARTITION)]
            )
        ],
    )
    reference.with_header(correlation_id=9, client_id="me")

    expected = bytes(reference.encode(header=True, framed=True))
    assert ours(FETCH, version, {**fields, "topics": [{"topic": "t", "partitions": [PARTITION]}]}) == expected


@pytest.mark.parametrize("version", [1, 8, 9, 12])
def test_metadata_reply_is_decoded_as_by_kafka_python(version: int) -> None:
    messages = pytest.importorskip("kafka.protocol.metadata")
    partition = {"partition_index": 1, "leader_id": 2, "replica_nodes": [2, 3], "isr_nodes": [2]}
    body = {
        "brokers": [{"node_id": 2, "host": "h", "port": 9092, "rack": "r"}],
        "controller_id": 2,
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    frame = b"".join(encode_response(METADATA, version, 9, body))[4:]
    reference = messages.MetadataResponse[version].decode(frame, header=True)

    assert reference.controller_id == decode_response(METADATA, version, frame)["controller_id"] == 2
    assert [(b.node_id, b.host, b.port, b.rack) for b in reference.brokers] == [(2, "h", 9092, "r")]
    (result,) = reference.topics[0].partitions
    assert (result.partition_index, result.leader_id, list(result.replica_nodes)) == (1, 2, [2, 3])


def test_fetch_v11_request_equals_aiokafkas() -> None:
    fetch = pytest.importorskip("aiokafka.protocol.fetch")
    # Replica, max wait, min bytes, max bytes, isolation, session id and epoch, topics, forgotten topics, rack.
    partition = (3, 4, 2**40, -1, 1 << 20)
    reference = fetch.FetchRequest_v11(-1, 500, 1, 2**31 - 1, 1, 0, -1, [("t", [partition])], [], "r")
    body = {**FETCH_BODY, "topics": [{"topic": "t", "partitions": [PARTITION]}]}

    assert ours(FETCH, 11, body).endswith(reference.encode())


def test_list_offsets_v3_request_equals_aiokafkas() -> None:
    offset = pytest.importorskip("aiokafka.protocol.offset")
    reference = offset.OffsetRequest_v3(-1, 1, [("t", [(3, -2)])])
    body = {"isolation_level": 1, "topics": [{"name": "t", "partitions": [{"partition_index": 3, "timestamp": -2}]}]}

    assert ours(LIST_OFFSETS, 3, body).endswith(reference.encode())


def test_subscription_equals_aiokafkas() -> None:
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    reference = protocol.ConsumerProtocolMemberMetadata(0, ["a", "b"], b"data")

    assert encode_versioned(SUBSCRIPTION, 0, {"topics": ["a", "b"], "user_data": b"data"}) == reference.encode()
