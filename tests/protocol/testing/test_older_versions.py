"""Every version of every request is handled, and its reply has the layout of that version."""

from __future__ import annotations

import pytest

from protocol.broker_errors import ErrorCode
from protocol.errors import UnsupportedVersion
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.handlers import VERSIONS
from protocol.testing.fake_kafka.older_versions import newest_request, reply_in
from protocol.testing.fake_kafka.requests import Request
from protocol.wire import frame
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from protocol.wire.schema import Api
from tests.protocol.fetch.consuming import client_of

EACH = [(api, version) for api, (first, last) in VERSIONS.items() for version in range(first, last + 1)]


@pytest.mark.parametrize(("api", "version"), EACH, ids=lambda parameter: getattr(parameter, "name", parameter))
def test_empty_request_gets_a_reply_of_its_version(api: Api, version: int) -> None:
    cluster = Cluster(settings={"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"})
    cluster.create_topic("orders")
    sent = b"".join(frame.encode_request(api, version, 7, "client", {}))[4:]
    _, _, _, client_id, body = frame.decode_request(sent)
    handle = cluster.handle(1, Request(api, version, newest_request(api, version, body), client_id or ""))
    reply = cluster.look(handle) if callable(handle) else handle
    if reply is None:
        pytest.skip("the reply is not due yet")
    data = b"".join(frame.encode_response(api, version, 7, reply_in(api, version, reply)))[4:]
    assert frame.decode_response(api, version, data).keys() == {field.name for field in api.response.fields}


def test_cluster_offers_no_newer_versions_than_asked() -> None:
    with (
        FakeKafka(newest_versions={"ApiVersions": 2, "Metadata": 9, "ConsumerGroupHeartbeat": -1}) as kafka,
        client_of(kafka.bootstrap_servers) as client,
    ):
        kafka.create_topic("orders")
        assert client.topic("orders").topic_id == NO_TOPIC_ID
        assert {version for name, version, _ in kafka.requests if name == "Metadata"} == {9}
        (broker,) = client.metadata([]).brokers.values()
        with pytest.raises(UnsupportedVersion, match="does not support ConsumerGroupHeartbeat"):
            client.ask(broker, CONSUMER_GROUP_HEARTBEAT, {}, client.deadline())


@pytest.mark.parametrize(
    ("api", "version", "code"), [(INIT_PRODUCER_ID, 3, 47), (INIT_PRODUCER_ID, 4, 90), (END_TXN, 1, 47)]
)
def test_fenced_producer_has_the_code_that_the_version_knows(api: Api, version: int, code: int) -> None:
    assert reply_in(api, version, {"error_code": ErrorCode.PRODUCER_FENCED})["error_code"] == code
