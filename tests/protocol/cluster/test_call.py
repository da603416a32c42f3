"""One call: its broker, chosen from the message or by the caller; the meaning of error codes in its reply; retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.call import call, call_partitions
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator, transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.config import ClientConfig
from protocol.errors import BrokerError, Corrupt, DeadlineExceeded, KafkaError, UnsupportedVersion, UsageError
from protocol.testing.fake_kafka.faults import api_of
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR, GROUP, TRANSACTION
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from protocol.wire.messages.m16_list_groups import LIST_GROUPS
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m19_create_topics import CREATE_TOPICS
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.schema import Api

ONE, TWO, THREE = 1, 2, 3


class Cluster(FakeKafka):
    """Three brokers. The first is the controller and leads orders-0, the second leads orders-1 and orders-2.

    `etl` is a group and a transactional id, with a coordinator for each.
    """

    def __init__(self) -> None:
        super().__init__(3)
        self.create_topic("orders", 3)
        for partition, leader in enumerate((ONE, TWO, TWO)):
            self.move_leader("orders", partition, leader)
            self.set_leader_epoch("orders", partition, 7)
        self.move_coordinator("etl", TWO, GROUP)
        self.move_coordinator("etl", THREE, TRANSACTION)

    def brokers_asked(self, api: Api) -> list[int]:
        """Return the brokers that received a request, in broker order."""
        return [
            number for number, listener in self.listeners.items() for name, *_ in listener.requests if name == api.name
        ]

    def request_bodies(self, kind: Api | str) -> list[dict[str, Any]]:
        """Return the request bodies, in broker order."""
        every = [request for listener in self.listeners.values() for request in listener.requests]
        return [body for name, _, body in every if name == api_of(kind).name]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(ClientConfig(tuple(cluster.addresses.values()), retry_backoff_ms=1)) as client:
        yield client


# -- routing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "body", "requested"),
    [
        (HEARTBEAT, {"group_id": "etl", "member_id": "m"}, TWO),
        (DESCRIBE_GROUPS, {"groups": ["etl"]}, TWO),
        (INIT_PRODUCER_ID, {"transactional_id": "etl"}, THREE),
        (END_TXN, {"transactional_id": "etl"}, THREE),
        (CREATE_TOPICS, {"topics": []}, ONE),
    ],
    ids=["a group", "a list of one", "a transactional id", "a transactional id again", "the controller"],
)
def test_message_determines_the_broker(
    cluster: Cluster, client: Client, api: Api, body: dict[str, Any], requested: int
) -> None:
    cluster.handlers[api] = lambda *_: {}
    for _ in range(3):
        call(client, api, body, client.deadline())
    assert cluster.brokers_asked(api) == [requested] * 3
    assert len(cluster.brokers_asked(FIND_COORDINATOR)) == (requested != ONE)


def test_caller_may_choose_broker_or_coordinator(cluster: Cluster, client: Client) -> None:
    cluster.handlers[LIST_GROUPS] = lambda *_: {}
    cluster.handlers[OFFSET_FETCH] = lambda *_: {}
    with pytest.raises(UsageError, match="ListGroups goes to one broker"):
        call(client, LIST_GROUPS, {}, client.deadline())
    call(client, LIST_GROUPS, {}, client.deadline(), to=client.brokers()[THREE])
    assert cluster.brokers_asked(LIST_GROUPS) == [THREE]

    def by_version(version: int) -> dict[str, Any]:
        return {"groups": [{"group_id": "etl", "topics": None}]}

    with pytest.raises(UsageError, match="OffsetFetch goes to the coordinator of the group: pass `to`"):
        call(client, OFFSET_FETCH, by_version, client.deadline())
    call(client, OFFSET_FETCH, by_version, client.deadline(), to=group_coordinator("etl"), at_least=8, at_most=9)
    assert cluster.brokers_asked(OFFSET_FETCH) == [TWO]


def test_producer_id_without_transactions_comes_from_any_broker(cluster: Cluster, client: Client) -> None:
    cluster.handlers[INIT_PRODUCER_ID] = lambda *_: {"producer_id": 5}
    assert call(client, INIT_PRODUCER_ID, {"transactional_id": None}, client.deadline())["producer_id"] == 5
    assert cluster.brokers_asked(FIND_COORDINATOR) == []


def test_call_about_partitions_needs_call_partitions(client: Client) -> None:
    with pytest.raises(UsageError, match="ListOffsets goes to the leader of the partition"):
        call(client, LIST_OFFSETS, {}, client.deadline())


def test_remaining_time_is_sent_as_timeout_ms(cluster: Cluster, client: Client) -> None:
    cluster.handlers[CREATE_TOPICS] = lambda *_: {}
    call(client, CREATE_TOPICS, {"topics": []}, client.deadline(9_000))
    assert 1_000 < cluster.request_bodies(CREATE_TOPICS)[0]["timeout_ms"] <= 9_000


# -- a group and a transactional id with the same name --------------------------------------------


def test_coordinators_of_group_and_transactional_id_are_cached_separately(cluster: Cluster, client: Client) -> None:
    group, transaction = group_coordinator("etl"), transaction_coordinator("etl")
    deadline = client.deadline()
    assert client.coordinator(group, deadline).node_id == TWO
    assert client.coordinator(transaction, deadline).node_id == THREE
    for kind in (GROUP, TRANSACTION):
        cluster.move_coordinator("etl", ONE, kind)
    client.forget_coordinator(group)
    assert client.coordinator(group, deadline).node_id == ONE
    assert client.coordinator(transaction, deadline).node_id == THREE


def test_coordinator_that_moved_is_looked_up_again_without_the_other(cluster: Cluster, client: Client) -> None:
    client.coordinator(group_coordinator("etl"), client.deadline())
    cluster.handlers[END_TXN] = lambda *_: {}

    def moved(body: dict[str, Any], version: int) -> dict[str, Any]:
        cluster.move_coordinator("etl", ONE, TRANSACTION)
        return {"error_code": int(ErrorCode.NOT_COORDINATOR)}

    cluster.listeners[THREE].handlers[END_TXN] = moved
    call(client, END_TXN, {"transactional_id": "etl"}, client.deadline())
    assert sorted(cluster.brokers_asked(END_TXN)) == [ONE, THREE]
    assert [body["key_type"] for body in cluster.request_bodies(FIND_COORDINATOR)].count(GROUP) == 1


def test_coordinator_errors_name_the_group_or_transactional_id(cluster: Cluster, client: Client) -> None:
    refused = {"key": "etl", "error_code": int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    cluster.handlers[FIND_COORDINATOR] = lambda *_: {"coordinators": [refused]}
    with pytest.raises(BrokerError, match="coordinator of transactional id etl") as caught:
        call(client, END_TXN, {"transactional_id": "etl"}, client.deadline())
    assert caught.value.context["transactional_id"] == "etl"
    with pytest.raises(BrokerError, match="coordinator of group etl") as caught:
        call(client, HEARTBEAT, {"group_id": "etl"}, client.deadline())
    assert caught.value.context["group"] == "etl"


def test_old_broker_is_not_asked_for_a_transaction_coordinator(cluster: Cluster, client: Client) -> None:
    """It would return the coordinator of the group with that name."""
    kinds = [(api, 0, api.last) for api in (API_VERSIONS, METADATA, END_TXN)] + [(FIND_COORDINATOR, 0, 0)]
    rows = [{"api_key": api.key, "min_version": first, "max_version": last} for api, first, last in kinds]
    cluster.handlers[API_VERSIONS] = lambda *_: {"api_keys": rows}
    with pytest.raises(UnsupportedVersion, match="FindCoordinator"):
        call(client, END_TXN, {"transactional_id": "etl"}, client.deadline())


# -- error codes ----------------------------------------------------------------------------------


def test_error_code_in_a_row_is_raised_with_its_topic(cluster: Cluster, client: Client) -> None:
    rows = [
        {"name": "bills", "error_code": 0},
        {"name": "orders", "error_code": int(ErrorCode.TOPIC_ALREADY_EXISTS), "error_message": "there it is"},
    ]
    cluster.handlers[CREATE_TOPICS] = lambda *_: {"topics": rows}
    with pytest.raises(
        BrokerError, match=r"CreateTopics of orders at .* \(broker 1\): there it is: TOPIC_AL"
    ) as caught:
        call(client, CREATE_TOPICS, {"topics": []}, client.deadline(), topics=["orders", "bills"])
    assert caught.value.context["topic"] == "orders"


def test_accepted_error_code_is_returned(cluster: Cluster, client: Client) -> None:
    answer = {"error_code": int(ErrorCode.MEMBER_ID_REQUIRED), "member_id": "m-1", "members": []}
    cluster.handlers[JOIN_GROUP] = lambda *_: answer
    with pytest.raises(BrokerError, match=r"JoinGroup for group etl at .*: MEMBER_ID_REQUIRED"):
        call(client, JOIN_GROUP, {"group_id": "etl"}, client.deadline())
    reply = call(client, JOIN_GROUP, {"group_id": "etl"}, client.deadline(), accept=[ErrorCode.MEMBER_ID_REQUIRED])
    assert reply["member_id"] == "m-1"


# -- partitions -----------------------------------------------------------------------------------

ALL = {("orders", number): {"timestamp": 10 + number} for number in range(3)}


def offsets_of(body: dict[str, Any], **codes: int) -> dict[str, Any]:
    """Return for each partition an offset that equals the requested timestamp."""
    rows = [
        {"partition_index": row["partition_index"], "offset": row["timestamp"], "error_code": 0}
        for row in body["topics"][0]["partitions"]
    ]
    for row in rows:
        row["error_code"] = codes.get(f"p{row['partition_index']}", 0)
    return {"topics": [{"name": "orders", "partitions": rows}]}


def listed(client: Client, **options: Any) -> dict[tuple[str, int], int]:
    rows = call_partitions(client, LIST_OFFSETS, {"replica_id": -1}, ALL, client.deadline(2_000), **options)
    return {key: row["offset"] for key, row in rows.items()}


def test_leaders_get_one_request_for_all_their_partitions(cluster: Cluster, client: Client) -> None:
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(body)
    assert listed(client) == {("orders", 0): 10, ("orders", 1): 11, ("orders", 2): 12}
    assert cluster.brokers_asked(LIST_OFFSETS) == [ONE, TWO]


def test_failed_partitions_alone_are_asked_again(cluster: Cluster, client: Client) -> None:
    refusals = [{"p1": int(ErrorCode.NOT_LEADER_OR_FOLLOWER)}, {"p1": int(ErrorCode.KAFKA_STORAGE_ERROR)}]
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(body)
    cluster.listeners[TWO].handlers[LIST_OFFSETS] = lambda body, version: offsets_of(
        body, **(refusals.pop() if refusals else {})
    )
    assert listed(client)["orders", 1] == 11
    requested = [
        [row["partition_index"] for row in body["topics"][0]["partitions"]]
        for body in cluster.request_bodies(LIST_OFFSETS)
    ]
    assert requested == [[0], [1, 2], [1], [1]]
    assert len(cluster.brokers_asked(METADATA)) == 3, "one request, and one for each refusal"


def test_handler_may_refuse_a_row(cluster: Cluster, client: Client) -> None:
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(body)

    def handle(key: tuple[str, int], row: Any, broker: Broker, error: BrokerError | None) -> KafkaError | None:
        assert error is None
        return UsageError(f"{key} at {broker}: {row['offset']} is no good") if key == ("orders", 2) else None

    with pytest.raises(UsageError, match=r"2\) at .* \(broker 2\): 12 is no good"):
        listed(client, handle=handle)


def test_handler_may_accept_an_error_as_the_answer(cluster: Cluster, client: Client) -> None:
    codes = {"p1": int(ErrorCode.NOT_LEADER_OR_FOLLOWER), "p2": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(body, **codes)
    handled = []

    def handle(key: tuple[str, int], row: Any, broker: Broker, error: BrokerError | None) -> KafkaError | None:
        handled.append((key[1], error and error.name))
        codes.pop("p1", None)
        return error if key == ("orders", 1) else None

    assert listed(client, handle=handle).keys() == ALL.keys()
    assert sorted(handled, key=str) == [
        (0, None),
        (1, "NOT_LEADER_OR_FOLLOWER"),
        (1, None),
        (2, "TOPIC_AUTHORIZATION_FAILED"),
    ]


def test_partition_error_has_topic_and_partition_in_its_context(cluster: Cluster, client: Client) -> None:
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(
        body, p2=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    )
    with pytest.raises(BrokerError, match=r"orders-2 at .* \(broker 2\): TOPIC_AUTH") as caught:
        listed(client)
    assert (caught.value.context["topic"], caught.value.context["partition"]) == ("orders", 2)


def test_fenced_call_sends_the_current_leader_epoch(cluster: Cluster, client: Client) -> None:

    def ends(body: dict[str, Any], version: int) -> dict[str, Any]:
        return {"topics": [{"topic": "orders", "partitions": [{"partition": 0, "end_offset": 5}]}]}

    cluster.handlers[OFFSET_FOR_LEADER_EPOCH] = ends
    requested = {("orders", 0): {"leader_epoch": 3}}
    rows = call_partitions(client, OFFSET_FOR_LEADER_EPOCH, {}, requested, client.deadline(), check_leader_epoch=True)
    assert rows["orders", 0]["end_offset"] == 5
    (row,) = cluster.request_bodies(OFFSET_FOR_LEADER_EPOCH)[0]["topics"][0]["partitions"]
    assert row == {"partition": 0, "current_leader_epoch": 7, "leader_epoch": 3}


def test_coordinator_is_asked_about_all_and_then_failed_partitions(cluster: Cluster, client: Client) -> None:
    busy = [int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]

    def committed(body: dict[str, Any], version: int) -> dict[str, Any]:
        rows = [{"partition_index": row["partition_index"], "error_code": 0} for row in body["topics"][0]["partitions"]]
        rows[-1]["error_code"] = busy.pop() if busy else 0
        return {"topics": [{"name": "orders", "partitions": rows}]}

    cluster.handlers[OFFSET_COMMIT] = committed
    offsets = {("orders", number): {"committed_offset": 5, "committed_metadata": ""} for number in range(3)}
    rows = call_partitions(client, OFFSET_COMMIT, {"group_id": "etl"}, offsets, client.deadline(), at_most=9)
    assert rows.keys() == offsets.keys()
    assert cluster.brokers_asked(OFFSET_COMMIT) == [TWO, TWO]
    assert [len(body["topics"][0]["partitions"]) for body in cluster.request_bodies(OFFSET_COMMIT)] == [3, 1]


def test_partition_missing_in_a_reply_is_named_and_extra_one_ignored(cluster: Cluster, client: Client) -> None:
    added = {"partition_index": 9, "offset": 1, "error_code": int(ErrorCode.UNKNOWN_SERVER_ERROR)}

    def offsets(body: dict[str, Any], version: int) -> dict[str, Any]:
        reply = offsets_of(body)
        reply["topics"][0]["partitions"].append(added)
        return reply

    cluster.handlers[LIST_OFFSETS] = offsets
    assert listed(client).keys() == ALL.keys()
    cluster.listeners[TWO].handlers[LIST_OFFSETS] = lambda *_: {"topics": []}
    with pytest.raises(Corrupt, match=r"ListOffsets at .* \(broker 2\): the reply omits orders-1"):
        listed(client)


def test_deadline_error_names_the_call_and_its_partitions(cluster: Cluster, client: Client) -> None:
    codes = {f"p{number}": int(ErrorCode.NOT_LEADER_OR_FOLLOWER) for number in range(3)}
    cluster.handlers[LIST_OFFSETS] = lambda body, version: offsets_of(body, **codes)
    with pytest.raises(DeadlineExceeded, match=r"ListOffsets of orders-0, orders-1, orders-2 did not succeed in .*"):
        listed(client, max_attempts=3)
    assert cluster.brokers_asked(LIST_OFFSETS) == [ONE, ONE, ONE, TWO, TWO, TWO]
