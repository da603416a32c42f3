"""Assignors of the user's own: user data, assignments, failures, and a group with librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from protocol import Client, KafkaConsumer, MemberAssignment, PartitionAssignor, TopicPartition
from protocol.config import ConsumerConfig, parse_consumer
from protocol.consumer.session import ConsumerGroupSession
from protocol.errors import ConfigurationError, UsageError
from protocol.group.assignors.strategies import parse_strategy
from protocol.group.member import ConsumerGroupMetadata
from protocol.testing import FakeKafka
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.conftest import NewConsumer
from tests.protocol.consumer.members import IdleHandler, group_of
from tests.support.wait_until import wait_until

STRATEGY = "partition.assignment.strategy"


class ByWeight(PartitionAssignor):
    """Assigns each member as many partitions as its weight, which it sends as user data."""

    name = "by-weight"

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.seen: list[tuple[set[str], dict[str, int]]] = []
        self.assigned: list[tuple[set[TopicPartition], bytes | None, str]] = []

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        return b"%d" % self.weight

    def assign(
        self, topics: Mapping[str, Any], subscriptions: Mapping[str, Any]
    ) -> Mapping[str, MemberAssignment | Iterable[TopicPartition]]:
        weights = {member: int(subscription.user_data) for member, subscription in subscriptions.items()}
        self.seen.append((set(topics), weights))
        remaining = [(topic, number) for topic, racks in topics.items() for number in range(len(racks))]
        result: dict[str, MemberAssignment | Iterable[TopicPartition]] = {}
        for member in sorted(weights, key=lambda weight: -weights[weight]):
            count = weights[member]
            result[member] = MemberAssignment(remaining[:count], b"of %d" % len(weights))
            remaining = remaining[count:]
        return result

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.assigned.append((set(assignment.partitions), assignment.user_data, metadata.group_id))


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 4)
        yield kafka


@pytest.fixture
def new_member(fake: FakeKafka) -> Iterator[Callable[..., KafkaConsumer]]:
    """Yield `new_member(assignors)`, for members that subscribe to orders."""
    with ExitStack() as members:

        def create(strategy: object) -> KafkaConsumer:
            properties = {"bootstrap.servers": fake.bootstrap_servers, "group.id": "g", STRATEGY: strategy}
            properties |= {"auto.offset.reset": "earliest"}
            consumer = members.enter_context(KafkaConsumer({**properties, "heartbeat.interval.ms": 100}))
            consumer.subscribe(["orders"])
            return consumer

        yield create


def numbers(consumer: KafkaConsumer) -> list[int]:
    consumer.poll(50)
    return sorted(number for _, number in consumer.assignment)


def test_leader_gets_user_data_and_members_get_their_assignments(new_member: Callable[..., KafkaConsumer]) -> None:
    heavy, light = ByWeight(3), ByWeight(1)
    first, second = new_member(heavy), new_member([light, "range"])
    wait_until(lambda: (numbers(first), numbers(second)) == ([0, 1, 2], [3]))
    leader = heavy if heavy.seen else light
    topics, weights = leader.seen[-1]
    assert (topics, sorted(weights.values())) == ({"orders"}, [1, 3])
    assert heavy.assigned[-1] == ({("orders", number) for number in (0, 1, 2)}, b"of 2", "g")
    assert light.assigned[-1] == ({("orders", 3)}, b"of 2", "g")


def test_group_takes_a_strategy_that_all_members_have(new_member: Callable[..., KafkaConsumer]) -> None:
    own = ByWeight(3)
    first = new_member([own, "range"])
    wait_until(lambda: numbers(first) == [0, 1, 2])
    calls, second = len(own.assigned), new_member("roundrobin,range")
    wait_until(lambda: (len(numbers(first)), len(numbers(second))) == (2, 2))
    assert len(own.assigned) == calls
    second.close()
    wait_until(lambda: numbers(first) == [0, 1, 2])
    assert len(own.assigned) > calls


def test_own_strategy_gives_way_to_the_common_one_while_librdkafka_is_a_member(
    kafka1: LocalKafka, client: Client, topic1: TopicFactory, group: str, new_consumer: NewConsumer
) -> None:
    name, own = topic1(4), ByWeight(4)
    ours = new_consumer(**{STRATEGY: [own, "range"], "heartbeat.interval.ms": 100})
    ours.subscribe([name])
    wait_until(lambda: numbers(ours) == [0, 1, 2, 3])
    assert own.assigned[-1][1] == b"of 1"
    calls = len(own.assigned)
    properties = {"bootstrap.servers": kafka1.bootstrap_servers, "group.id": group, "heartbeat.interval.ms": 100}
    consumer = confluent_kafka.Consumer({**properties, STRATEGY: "range"})
    consumer.subscribe([name])

    def shared() -> bool:
        consumer.poll(0.02)
        further = sorted(partition.partition for partition in consumer.assignment())
        own_numbers = numbers(ours)
        return len(further) == 2 and sorted(own_numbers + further) == [0, 1, 2, 3]

    try:
        wait_until(shared)
        assert len(own.assigned) == calls
    finally:
        consumer.close()
    wait_until(lambda: numbers(ours) == [0, 1, 2, 3])
    assert len(own.assigned) > calls


def test_assignor_of_a_consumer_group_assigns_its_partitions(fake: FakeKafka) -> None:
    own, claims = ByWeight(4), dict[str, list[int]]()

    class Ending(IdleHandler):
        def setup(self, session: ConsumerGroupSession) -> None:
            claims.update(session.claims)
            group.close()

    with group_of({"bootstrap.servers": fake.bootstrap_servers}, **{STRATEGY: own}) as group:
        group.consume(["orders"], Ending())
    assert claims == {"orders": [0, 1, 2, 3]}
    assert own.assigned


class Broken(ByWeight):
    def __init__(self, method: str) -> None:
        super().__init__(4)
        self.method = method

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        if self.method == "user_data":
            raise ZeroDivisionError("broken")
        return b"4" if self.method != "user_data returned str" else "4"  # type: ignore[return-value]

    def assign(self, topics: Mapping[str, Any], subscriptions: Mapping[str, Any]) -> Any:
        if self.method == "assign":
            raise ZeroDivisionError("broken")
        if self.method == "members":
            return {"stranger": [("orders", 0)]}
        return None if self.method == "the result of assign" else super().assign(topics, subscriptions)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        raise ZeroDivisionError("broken")


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("user_data", "user_data has failed: ZeroDivisionError"),
        ("user_data returned str", "user_data returned str"),
        ("assign", "assign has failed: ZeroDivisionError"),
        ("the result of assign", "the result of assign has failed: AttributeError"),
        ("members", r"the group has no members stranger"),
    ],
)
def test_failure_of_an_assignor_is_raised_by_poll_and_the_next_one_joins_again(
    new_member: Callable[..., KafkaConsumer], method: str, error: str
) -> None:
    assignor = Broken(method)
    consumer = new_member(assignor)
    with pytest.raises(UsageError, match=f"assignor by-weight: .*{error}"):
        consumer.poll(30_000)
    assignor.method = "none"
    wait_until(lambda: numbers(consumer) == [0, 1, 2, 3])


def test_failure_of_on_assignment_is_logged(
    new_member: Callable[..., KafkaConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = new_member(Broken("on_assignment"))
    wait_until(lambda: numbers(consumer) == [0, 1, 2, 3])
    assert "assignor by-weight: on_assignment has failed: ZeroDivisionError('broken')" in caplog.text


class Waiting(ByWeight):
    """Waits in one of its methods from `waits_in` on, until `result`."""

    name = "waiting"
    cooperative = True

    def __init__(self) -> None:
        super().__init__(4)
        self.waits_in = ""
        self.is_called, self.result = threading.Event(), threading.Event()
        self.timed_out = False

    def wait(self, method: str) -> None:
        if method == self.waits_in:
            self.is_called.set()
            self.timed_out |= not self.result.wait(20)

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        self.wait("user_data")
        return super().user_data(topics)

    def assign(
        self, topics: Mapping[str, Any], subscriptions: Mapping[str, Any]
    ) -> Mapping[str, MemberAssignment | Iterable[TopicPartition]]:
        self.wait("assign")
        return super().assign(topics, subscriptions)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.wait("on_assignment")
        super().on_assignment(assignment, metadata)


EACH_METHOD = pytest.mark.parametrize("method", ["user_data", "assign", "on_assignment"])


@EACH_METHOD
def test_consumer_reads_and_commits_while_its_assignor_waits(
    fake: FakeKafka, new_member: Callable[..., KafkaConsumer], method: str
) -> None:
    assignor = Waiting()
    consumer = new_member(assignor)
    wait_until(lambda: numbers(consumer) == [0, 1, 2, 3])
    assignor.waits_in = method
    fake.rebalance("g")
    assert assignor.is_called.wait(20)
    fake.produce("orders", b"during the rebalance", partition=2)
    wait_until(lambda: len(consumer.poll(100)))
    consumer.commit_async()
    consumer.metrics()
    assert not assignor.timed_out
    assigned = len(assignor.assigned)
    assignor.result.set()
    wait_until(lambda: len(assignor.assigned) > assigned)
    assert numbers(consumer) == [0, 1, 2, 3]
    consumer.commit_sync()
    committed = consumer.committed([("orders", 2)])[("orders", 2)]
    assert committed is not None
    assert committed.offset == 1


@EACH_METHOD
def test_consumer_leaves_at_once_while_its_assignor_waits(
    fake: FakeKafka, new_member: Callable[..., KafkaConsumer], method: str
) -> None:
    assignor = Waiting()
    assignor.waits_in = method
    consumer = new_member(assignor)
    consumer.poll(0)
    assert assignor.is_called.wait(20)
    consumer.close()
    assert not assignor.timed_out
    assert method == "user_data" or not fake.groups.groups["g"].members
    calls = len(assignor.seen), len(assignor.assigned)
    assignor.result.set()
    wait_until(lambda: not [thread for thread in threading.enumerate() if "of g" in thread.name])
    assert sum((len(assignor.seen), len(assignor.assigned))) <= sum(calls) + 1, "the result is dropped"


class Calling(Waiting):
    """Calls the consumer in each method."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Callable[[], object] = lambda: None

    def wait(self, method: str) -> None:
        super().wait(method)
        if self.result.is_set():
            self.call()


def test_assignor_that_calls_its_consumer_during_a_poll_is_refused(new_member: Callable[..., KafkaConsumer]) -> None:
    assignor = Calling()
    assignor.result.set()
    consumer = new_member(assignor)
    assignor.call = lambda: consumer.poll(0)
    with pytest.raises(UsageError, match=r"user_data has failed: .*another thread"):
        consumer.poll(30_000)


def test_assignor_may_close_its_consumer(fake: FakeKafka, new_member: Callable[..., KafkaConsumer]) -> None:
    assignor = Calling()
    assignor.waits_in = "assign"
    consumer = new_member(assignor)
    consumer.poll(0)
    assert assignor.is_called.wait(20)
    assignor.call = consumer.close
    assignor.result.set()
    wait_until(lambda: not fake.groups.groups["g"].members)
    wait_until(lambda: not [thread for thread in threading.enumerate() if "of g" in thread.name])
    with pytest.raises(UsageError, match="closed"):
        consumer.poll(0)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (PartitionAssignor(), "not an assignor"),
        (5, "5 is not an assignor"),
        ([], "empty list"),
        ([ByWeight(1), ByWeight(2)], "listed twice: by-weight, by-weight"),
        ([ByWeight(1), "range,sticky", "range"], "listed twice"),
        (["range", "none"], "'none' is not known"),
    ],
    ids=["no name", "number", "empty", "twice", "twice by name", "unknown name"],
)
def test_wrong_assignors_are_refused(inputs: object, error: str) -> None:
    config = parse_consumer({"group.id": "g", "group.protocol": "classic", STRATEGY: inputs})
    with pytest.raises(ConfigurationError, match=error) as raised:
        parse_strategy(config.partition_assignment_strategy)
    assert raised.value.settings == {STRATEGY}


def test_names_and_objects_keep_their_order() -> None:
    config = parse_consumer({"group.id": "g", "group.protocol": "classic", STRATEGY: ("sticky", ByWeight(1), "range")})
    names = [assignor.name for assignor in parse_strategy(config.partition_assignment_strategy)]
    assert names == ["sticky", "by-weight", "range"]
    assert parse_consumer({}).partition_assignment_strategy == ConsumerConfig.partition_assignment_strategy
