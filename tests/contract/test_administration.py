"""Configurations, groups and producers as administrators see them, and records that a topic's configuration refuses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import protocol
from protocol.admin import AlterConfigOp, AlterConfigOpType, quota_entity, topic_resource
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import AdminFailed, ConnectFailed
from protocol.version import CLIENT_SOFTWARE
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from protocol.wire.messages.m60_describe_cluster import DESCRIBE_CLUSTER
from tests.contract.members import ask_coordinator, commit, committed, new_group, stable, subscription
from tests.contract.raw_requests import (
    ask,
    ask_leader,
    batch,
    fetch,
    fetch_body,
    list_offset,
    produce,
    values_in,
    written,
)
from tests.contract.transactions import TransactionalProducer
from tests.support.wait_until import wait_until

MAX_TIMESTAMP = -3


@pytest.fixture
def admin(client: Client) -> Iterator[protocol.Admin]:
    with protocol.Admin(client) as admin:
        yield admin


def configs(admin: protocol.Admin, topic: str) -> dict[str, Any]:
    (entries,) = admin.describe_configs([topic_resource(topic)]).values()
    return dict(entries)


class TestConfigs:
    def test_own_configs_of_a_topic_are_distinguished_from_defaults(
        self, admin: protocol.Admin, new_topic: Any
    ) -> None:
        result = configs(admin, new_topic(config={"retention.ms": "5000"}))
        own = {name: entry.value for name, entry in result.items() if not entry.is_default}
        assert own["retention.ms"] == "5000"
        assert (result["cleanup.policy"].value, result["cleanup.policy"].is_default) == ("delete", True)
        assert result["max.message.bytes"].value == "1048588"

    def test_incremental_changes_set_append_subtract_and_delete(self, admin: protocol.Admin, new_topic: Any) -> None:
        topic = new_topic()

        def change_to(expected: tuple[str, str], *operations: AlterConfigOp) -> None:
            admin.incremental_alter_configs({topic_resource(topic): operations})
            wait_until(lambda: policy_and_size() == expected, describe=policy_and_size)  # brokers learn it later

        def policy_and_size() -> tuple[str, str]:
            result = configs(admin, topic)
            return result["cleanup.policy"].value, result["max.message.bytes"].value

        kind = AlterConfigOpType
        change_to(("delete,compact", "1048588"), AlterConfigOp("cleanup.policy", "compact", kind.APPEND))
        change_to(("compact", "1048588"), AlterConfigOp("cleanup.policy", "delete", kind.SUBTRACT))
        change_to(("compact", "7"), AlterConfigOp("max.message.bytes", "7"))
        both = (
            AlterConfigOp("cleanup.policy", None, kind.DELETE),
            AlterConfigOp("max.message.bytes", None, kind.DELETE),
        )
        change_to(("delete", "1048588"), *both)

    def test_unknown_config_and_topic_are_refused(self, admin: protocol.Admin, new_topic: Any) -> None:
        for topic, name, code in (
            (new_topic(), "no.such", "INVALID_CONFIG"),
            ("not-there", "no.such", "INVALID_CONFIG"),
            ("not-there", "retention.ms", "UNKNOWN_TOPIC_OR_PARTITION"),
        ):
            with pytest.raises(AdminFailed, match=code):
                admin.incremental_alter_configs({topic_resource(topic): [AlterConfigOp(name, "1")]})

    def test_wanted_keys_alone_are_described(self, client: Client, new_topic: Any) -> None:
        keys = ["retention.ms", "no.such"]
        resource = {"resource_type": 2, "resource_name": new_topic(), "configuration_keys": keys}
        (result,) = ask(client, DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
        assert [config["name"] for config in result["configs"]] == ["retention.ms"]


class TestGroups:
    def test_group_with_a_member_is_not_deleted(self, admin: protocol.Admin, client: Client) -> None:
        group = new_group()
        (member,) = stable(client, group)
        with pytest.raises(AdminFailed, match="NON_EMPTY_GROUP"):
            admin.delete_groups([group])
        member.leave()

    def test_deleted_group_has_no_offsets(self, admin: protocol.Admin, client: Client, new_topic: Any) -> None:
        group, topic = new_group(), new_topic()
        assert commit(client, group, topic, 5) == 0
        admin.delete_groups([group])
        assert committed(client, group, topic) == (0, -1)
        with pytest.raises(AdminFailed, match="GROUP_ID_NOT_FOUND"):
            admin.delete_groups([group])

    def test_offsets_of_subscribed_topics_are_not_deleted(
        self, admin: protocol.Admin, client: Client, new_topic: Any
    ) -> None:
        group, subscribed, second = new_group(), new_topic(), new_topic()
        for topic in (subscribed, second):
            assert commit(client, group, topic, 5) == 0
        (member,) = stable(client, group, protocols={"range": subscription(subscribed)})
        with pytest.raises(AdminFailed, match="GROUP_SUBSCRIBED_TO_TOPIC"):
            admin.delete_consumer_group_offsets(group, [(subscribed, 0), (second, 0)])
        assert admin.list_consumer_group_offsets(group) == {(subscribed, 0): protocol.CommittedOffset(5, 0)}
        member.leave()

    def test_groups_are_listed_by_state(self, admin: protocol.Admin, client: Client, new_topic: Any) -> None:
        empty, full = new_group(), new_group()
        assert commit(client, empty, new_topic(), 5) == 0
        (member,) = stable(client, full)
        result = {group.group: group.state for group in admin.list_groups(states=["Stable"])}
        assert result[full] == "Stable"
        assert empty not in result
        member.leave()


class TestQuotas:
    @pytest.fixture
    def limited(self, admin: protocol.Admin, bootstrap_servers: str) -> Iterator[tuple[Client, Any]]:
        """Yield a client, and a function that sets its quotas and returns when brokers apply them."""
        client_id = f"limited-{uuid.uuid4().hex[:8]}"
        entity = quota_entity(client_id=client_id)

        def set_quotas(**quotas: float | None) -> None:
            admin.alter_client_quotas({entity: quotas})
            expected = {entity: {name: rate for name, rate in quotas.items() if rate is not None}}
            wait_until(lambda: admin.describe_client_quotas(client_id=client_id) == expected)

        with Client({"bootstrap.servers": bootstrap_servers, "client.id": client_id}) as client:
            yield client, set_quotas
        admin.alter_client_quotas({entity: {"producer_byte_rate": None, "consumer_byte_rate": None}})
        wait_until(lambda: entity not in admin.describe_client_quotas())

    def test_quotas_are_selected_by_their_entity(self, admin: protocol.Admin) -> None:
        name = f"quota-{uuid.uuid4().hex[:8]}"
        user, both, default = quota_entity(user=name), quota_entity(user=name, client_id="c"), quota_entity(user=None)
        expected = {
            user: {"producer_byte_rate": 1.5e6, "request_percentage": 200.0},
            both: {"consumer_byte_rate": 1e6},
            default: {"request_percentage": 300.0},
        }
        admin.alter_client_quotas({user: {"producer_byte_rate": 1.0}}, validate_only=True)
        admin.alter_client_quotas(expected)
        wait_until(lambda: admin.describe_client_quotas().items() >= expected.items(), admin.describe_client_quotas)
        described = admin.describe_client_quotas
        assert described(user=name) == {user: expected[user], both: expected[both]}
        assert described(user=name, strict=True) == {user: expected[user]}
        assert described(user="*", client_id="c") == {both: expected[both]}
        assert described(user=None) == {default: expected[default]}
        assert described(ip="*") == {}
        for entity, quotas in expected.items():
            admin.alter_client_quotas({entity: dict.fromkeys(quotas)})
        wait_until(lambda: not admin.describe_client_quotas().keys() & expected.keys())

    @pytest.mark.parametrize(
        ("entity", "name", "value"),
        [
            ({"user": "a"}, "no_such_rate", 1.0),
            ({"user": "a"}, "connection_creation_rate", 1.0),
            ({"ip": "127.0.0.1"}, "producer_byte_rate", 1.0),
            ({"user": "a", "ip": "127.0.0.1"}, "producer_byte_rate", 1.0),
            ({"user": "a"}, "producer_byte_rate", 0.0),
        ],
    )
    def test_invalid_quotas_are_refused(
        self, admin: protocol.Admin, entity: dict[str, str], name: str, value: float
    ) -> None:
        with pytest.raises(AdminFailed, match="INVALID_REQUEST"):
            admin.alter_client_quotas({quota_entity(**entity): {name: value}})

    def test_records_beyond_the_rate_of_ten_seconds_throttle_a_producer(
        self, limited: tuple[Client, Any], name: str
    ) -> None:
        client, set_quotas = limited
        rate = 20_000
        set_quotas(producer_byte_rate=rate)

        def throttle_ms(size_bytes: int) -> int:
            rows = [{"index": 0, "records": batch(bytes(size_bytes))}]
            topics = [{"topic_id": client.topic(name).topic_id, "partition_data": rows}]
            body = {"acks": -1, "timeout_ms": 5_000, "topic_data": topics}
            return int(ask_leader(client, PRODUCE, body, name)["throttle_time_ms"])

        assert throttle_ms(9 * rate) == 0
        # The rate's window is of 10 to 11 s.
        assert 0 < throttle_ms(3 * rate) < 3_000

    def test_throttled_consumer_gets_no_records(self, limited: tuple[Client, Any], name: str) -> None:
        client, set_quotas = limited
        rate = 20_000
        for _ in range(2):
            written(client, name, bytes(8 * rate))
        set_quotas(consumer_byte_rate=rate)

        def read(offset: int) -> tuple[int, list[bytes | None]]:
            reply = ask_leader(client, FETCH, fetch_body(client, name, {0: offset}, partition_max_bytes=1), name)
            rows = [row for topic in reply["responses"] for row in topic["partitions"]]
            return reply["throttle_time_ms"], [value for row in rows for value in values_in(row)]

        assert read(0) == (0, [bytes(8 * rate)])
        throttle_ms, values = read(1)
        assert (3_000 < throttle_ms < 8_000, values) == (True, [])


class TestTopicConfigs:
    def test_compacted_topic_refuses_records_without_key(self, client: Client, new_topic: Any) -> None:
        topic = new_topic(config={"cleanup.policy": "compact"})
        assert produce(client, topic, batch(b"a"))["error_code"] == ErrorCode.INVALID_RECORD

    def test_log_append_time_is_returned_and_stored(self, client: Client, new_topic: Any) -> None:
        topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
        row = produce(client, topic, batch(b"a"))
        assert row["log_append_time_ms"] > 0
        data = bytes(fetch(client, topic)["records"])
        assert data[22] & 8
        assert int.from_bytes(data[35:43], "big") == row["log_append_time_ms"]
        assert list_offset(client, topic, 0)["timestamp"] == row["log_append_time_ms"]

    def test_offset_of_the_largest_timestamp_is_found(self, client: Client, new_topic: Any) -> None:
        topic = new_topic()
        assert list_offset(client, topic, MAX_TIMESTAMP)["offset"] == -1
        written(client, topic, b"a")
        written(client, topic, b"b")
        assert list_offset(client, topic, MAX_TIMESTAMP)["offset"] in (0, 1)


def test_cluster_is_described(client: Client) -> None:
    reply = ask(client, DESCRIBE_CLUSTER, {})
    (row,) = reply["brokers"]
    broker = client.brokers()[row["broker_id"]]
    assert (row["host"], row["port"], row["is_fenced"]) == (broker.host, broker.port, False)
    assert reply["controller_id"] == row["broker_id"]
    assert reply["cluster_id"] == client.metadata([]).cluster_id


def test_broker_compares_the_ids_in_api_versions_with_its_own(client: Client) -> None:
    cluster_id, ((node_id, broker),) = client.metadata([]).cluster_id, client.brokers().items()
    codes = {
        (cluster_id, node_id): ErrorCode.NONE,
        (None, -1): ErrorCode.NONE,
        ("another", node_id): ErrorCode.REBOOTSTRAP_REQUIRED,
        (cluster_id, node_id + 1): ErrorCode.REBOOTSTRAP_REQUIRED,
        (cluster_id, -1): ErrorCode.INVALID_REQUEST,
        (None, node_id): ErrorCode.INVALID_REQUEST,
    }
    for (cluster, node), code in codes.items():
        body = {**CLIENT_SOFTWARE, "cluster_id": cluster, "node_id": node}
        reply = ask(client, API_VERSIONS, body, 5)
        assert (reply["error_code"], bool(reply["api_keys"])) == (code, code == ErrorCode.NONE)
        assert ask(client, API_VERSIONS, body, 4)["error_code"] == ErrorCode.NONE
    with pytest.raises(ConnectFailed, match=f"this is not broker {node_id + 1} of cluster {cluster_id}"):
        client.connection(replace(broker, node_id=node_id + 1), PRODUCE.name, client.deadline())


def test_producers_of_a_partition_show_an_open_transaction(
    admin: protocol.Admin, client: Client, new_topic: Any
) -> None:
    topic = new_topic()
    written(client, topic, b"a")
    producer = TransactionalProducer(client).init()
    producer.send(topic, b"b")
    (state,) = admin.describe_producers([(topic, 0)])[topic, 0]
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.epoch)
    assert state.transaction_start_offset == 1
    producer.end(commit=True)


class TestOlderVersions:
    """The layout of messages that older clients send; the meaning is that of the newest version."""

    @pytest.mark.parametrize("version", [4, 7, 9, 12])
    def test_metadata(self, client: Client, new_topic: Any, version: int) -> None:
        topic = new_topic(2)
        (row,) = ask(client, METADATA, {"topics": [{"name": topic}]}, version)["topics"]
        assert {partition["partition_index"] for partition in row["partitions"]} == {0, 1}

    @pytest.mark.parametrize("version", [0, 1, 3, 4])
    def test_find_coordinator(self, client: Client, version: int) -> None:
        group = new_group()
        body = {"coordinator_keys": [group]} if version >= 4 else {"key": group}
        reply = ask(client, FIND_COORDINATOR, body, version)
        row = reply["coordinators"][0] if version >= 4 else reply
        assert (row["error_code"], row["node_id"]) == (0, next(iter(client.brokers())))

    @pytest.mark.parametrize("version", [2, 5, 7, 8, 9])
    def test_offset_fetch(self, client: Client, new_topic: Any, version: int) -> None:
        group, topic = new_group(), new_topic()
        assert commit(client, group, topic, 5) == 0
        expected = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        body = {"groups": [expected]} if version >= 8 else expected
        reply = ask_coordinator(client, group, OFFSET_FETCH, body, version)
        row = reply["groups"][0] if version >= 8 else reply
        (partition,) = row["topics"][0]["partitions"]
        assert (row["error_code"], partition["committed_offset"], partition["metadata"]) == (0, 5, "")

    def test_member_joins_and_leaves_without_member_id_required(self, client: Client) -> None:
        group = new_group()
        protocols = [{"name": "range", "metadata": subscription("orders")}]
        timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
        body = {"group_id": group, "protocol_type": "consumer", "protocols": protocols, **timeouts}
        joined = ask_coordinator(client, group, JOIN_GROUP, body, 3)
        assert (joined["error_code"], joined["generation_id"], joined["leader"]) == (0, 1, joined["member_id"])
        remaining = {"group_id": group, "member_id": joined["member_id"]}
        assert ask_coordinator(client, group, LEAVE_GROUP, remaining, 1)["error_code"] == 0
        assert ask_coordinator(client, group, LEAVE_GROUP, remaining, 1)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID

    def test_unknown_group_is_dead(self, client: Client) -> None:
        group = f"unknown-{uuid.uuid4().hex}"
        (row,) = ask_coordinator(client, group, DESCRIBE_GROUPS, {"groups": [group]}, 5)["groups"]
        assert (row["error_code"], row["group_state"]) == (0, "Dead")

    @pytest.mark.parametrize("version", [2, 3, 5, 7])
    def test_list_offsets(self, client: Client, new_topic: Any, version: int) -> None:
        topic = new_topic()
        written(client, topic, b"a")
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        reply = ask_leader(client, LIST_OFFSETS, {"topics": topics}, topic, version=version)
        assert reply["topics"][0]["partitions"][0]["offset"] == 1

    @pytest.mark.parametrize("version", [3, 7, 9, 10])
    def test_produce(self, client: Client, new_topic: Any, version: int) -> None:
        topic = new_topic()
        row = produce(client, topic, batch(b"a"), version=version)
        assert (row["error_code"], row["base_offset"]) == (0, 0)
