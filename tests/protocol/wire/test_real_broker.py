"""A real broker accepts every request in every version that both sides support, and its responses are decoded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.wire.frame import decode_response, encode_request
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.parts import error_parts
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api, Struct
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.wire.kafka_facts import case_id

GROUP = "wire-group"
TXN = "wire-txn"


class Broker:
    """A connection with one request at a time; the real transport is tested elsewhere."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        ranges = self.call(API_VERSIONS, 0, {})["api_keys"]
        self.ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in ranges}

    def call(self, api: Api, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(b"".join(encode_request(api, version, 1, "wire-test", body)))
        size = int.from_bytes(self._receive(4), "big")
        return decode_response(api, version, self._receive(size))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker closed the connection: it could not read the request"
            data += part
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def broker(kafka1: LocalKafka) -> Iterator[Broker]:
    connection = Broker(kafka1.bootstrap_servers)
    yield connection
    connection.close()


def bodies(topic: str, topic_id: bytes) -> dict[str, dict[str, Any]]:
    """Return a plausible body for each API, with the fields of all versions; missing fields have their defaults."""
    named = {"topic": topic, "name": topic, "topic_id": topic_id}
    number = {"partition_index": 0}
    offset = {**number, "committed_offset": 0, "committed_metadata": ""}
    producer = {"transactional_id": TXN, "producer_id": 5, "producer_epoch": 0}
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "nobody"}
    first = [{**named, "partitions": [0], "partition_indexes": [0]}]
    resource = {"resource_type": 2, "resource_name": topic}
    config = {"name": "retention.ms", "value": "3600000"}
    rate = {"key": "producer_byte_rate", "value": 1.5e6}
    quota = {"entity": [{"entity_type": "user", "entity_name": "alice"}], "ops": [rate]}
    return {
        "Produce": {"acks": 1, "timeout_ms": 1000},
        "Fetch": {"topics": [{**named, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]},
        "ListOffsets": {"topics": [{**named, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
        "Metadata": {"topics": [{"name": topic}]},
        "OffsetCommit": {"group_id": GROUP, "topics": [{**named, "partitions": [offset]}]},
        "OffsetFetch": {"group_id": GROUP, "topics": first, "groups": [{"group_id": GROUP, "topics": first}]},
        "FindCoordinator": {"key": GROUP, "coordinator_keys": [GROUP]},
        "JoinGroup": {"group_id": GROUP, "protocol_type": "consumer", "protocols": [{"name": "range"}]},
        "Heartbeat": member,
        "LeaveGroup": {"group_id": GROUP, "member_id": "nobody", "members": [{"member_id": "nobody"}]},
        "SyncGroup": {**member, "protocol_type": "consumer", "protocol_name": "range"},
        "DescribeGroups": {"groups": [GROUP]},
        "ApiVersions": {"client_software_name": "wire", "client_software_version": "1"},
        "CreateTopics": {"topics": [{"name": topic, "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 1000},
        "DeleteTopics": {"topics": [{"name": "no-such"}], "topic_names": ["no-such"], "timeout_ms": 1000},
        "DeleteRecords": {"topics": [{**named, "partitions": [{**number, "offset": 0}]}], "timeout_ms": 999},
        "InitProducerId": {"transactional_id": None, "transaction_timeout_ms": 60_000},
        "OffsetForLeaderEpoch": {"topics": [{**named, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        "AddPartitionsToTxn": {
            **{f"v3_and_below_{name}": value for name, value in producer.items()},
            "v3_and_below_topics": first,
        },
        "AddOffsetsToTxn": {**producer, "group_id": GROUP},
        "EndTxn": {**producer, "committed": True},
        "TxnOffsetCommit": {**producer, "group_id": GROUP, "topics": [{**named, "partitions": [offset]}]},
        "DescribeConfigs": {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]},
        "CreatePartitions": {"topics": [{"name": topic, "count": 1, "assignments": None}], "timeout_ms": 1000},
        "DeleteGroups": {"groups_names": ["no-such"]},
        "DescribeProducers": {"topics": first},
        "DescribeTransactions": {"transactional_ids": [TXN]},
        "ConsumerGroupHeartbeat": {"group_id": GROUP, "member_id": "nobody", "member_epoch": 7},
        "ConsumerGroupDescribe": {"group_ids": [GROUP]},
        "DescribeAcls": {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
        "AlterConfigs": {"resources": [{**resource, "configs": [config]}]},
        "IncrementalAlterConfigs": {"resources": [{**resource, "configs": [{**config, "config_operation": 0}]}]},
        "AlterReplicaLogDirs": {"dirs": [{"path": "/no-such", "topics": first}]},
        "DescribeLogDirs": {"topics": first},
        "ElectLeaders": {"topic_partitions": first, "timeout_ms": 1000},
        "AlterPartitionReassignments": {"topics": [{**named, "partitions": [{**number, "replicas": None}]}]},
        "ListPartitionReassignments": {"topics": first, "timeout_ms": 1000},
        "OffsetDelete": {"group_id": GROUP, "topics": [{**named, "partitions": [{"partition_index": 0}]}]},
        "DescribeClientQuotas": {"components": [{"entity_type": "user", "match_type": 2, "match": None}]},
        "AlterClientQuotas": {"entries": [quota]},
        "DescribeUserScramCredentials": {"users": [{"name": "alice"}]},
        "AlterUserScramCredentials": {"deletions": [{"name": "no-such", "mechanism": 1}]},
        "DescribeQuorum": {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        "ListConfigResources": {"resource_types": [2]},
    }


def only_what_the_version_has(struct: Struct, version: int, value: dict[str, Any]) -> dict[str, Any]:
    retained = {}
    for field in struct.fields:
        if field.name not in value or not field.present(version):
            continue
        item, inner = value[field.name], getattr(field.type, "of", field.type)
        if isinstance(inner, Struct) and isinstance(item, list):
            item = [only_what_the_version_has(inner, version, element) for element in item]
        retained[field.name] = item
    return retained


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=case_id)
def test_requests_of_all_versions_are_accepted_and_replies_decoded(
    api: Api, broker: Broker, topic1: TopicFactory
) -> None:
    name = topic1()
    newest = min(METADATA.last, broker.ranges[METADATA.key][1])
    topic_id = broker.call(METADATA, newest, {"topics": [{"name": name}]})["topics"][0]["topic_id"]
    body = bodies(name, topic_id).get(api.name, {})
    lowest, highest = broker.ranges[api.key]
    versions = range(max(api.first, lowest), min(api.last, highest) + 1)
    assert versions, "nothing in common with this broker"
    for version in versions:
        answer = broker.call(api, version, only_what_the_version_has(api.request, version, body))
        refused = {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR}
        assert not refused & {part.code for part in error_parts(api, answer)}, f"version {version}: {answer}"
