"""Administration, a producer and a consumer while all brokers are replaced, and permissions come and go.

An administrator creates, extends, configures and deletes topics, and sets offsets of a group. A call that returned has
taken effect, and a call that failed has, or has not. Topics, brokers and offsets that a call returns are those that a
broker knew during the call. No call exceeds its deadline. In half of the runs all addresses of
the start are gone in the end; in the others a load balancer stays, and clients may lose all brokers at once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from protocol import Admin, CommittedOffset, KafkaConsumer, KafkaError, Producer
from protocol.admin import (
    AlterConfigOp,
    ClusterDescription,
    NewTopic,
    TopicDescription,
    TopicListing,
    topic_resource,
)
from protocol.errors import AdminFailed
from protocol.testing import FakeKafka
from protocol.testing.simulation import (
    Process,
    Simulation,
    acl_faults,
    bootstrap_servers,
    cluster_faults,
    heal,
    network_faults,
    settle,
)
from tests.simulation.cluster_states import ClusterStates, PartitionRow, State

BROKERS = 3
PARTITIONS = 4
NAMES = ("a", "b", "c")
GROUP = "g"
TIMEOUT_MS, REQUEST_TIMEOUT_MS = 8_000, 4_000
LATE_S = 1.0
METADATA_AGE_MS = 2_000
RETENTION_MS = "604800000"
"""Retention of a topic without a configuration."""
KINDS = (
    "AlterConfigs",
    "CreatePartitions",
    "CreateTopics",
    "DeleteTopics",
    "DescribeCluster",
    "Fetch",
    "FindCoordinator",
    "IncrementalAlterConfigs",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "Produce",
)
# A request that arrives after its call has ended could undo a later one.
_LATE_ARRIVALS = ("partition", "high latency", "low bandwidth")
# Each needs other brokers than the one that is replaced next.
_OF_BROKERS = (
    "fence a broker",
    "isolate a broker",
    "move a broker to another port",
    "replace a broker",
    "silence a broker",
    "stop a broker",
)


class Topic(NamedTuple):
    """The state of a topic, or of none without partitions."""

    partitions: int = 0
    retention_ms: str | None = None


class Change(NamedTuple):
    """A call, the state after it, and the error with which it may fail besides `DeadlineExceeded`."""

    call: Callable[[], object]
    after: object
    error: str = ""


class Read(NamedTuple):
    """A call that changes nothing, its result in terms of a state, and the same of a state of the cluster."""

    call: Callable[[], Any]
    told: Callable[[Any], object]
    expected: Callable[[State], object]


class Model:
    """The state of the cluster, compared with the administrator's calls when they end.

    Attributes
    ----------
    calls, failures : Counter
        Calls by kind, and errors.
    broken : list of str
        Broken rules.
    """

    def __init__(self, world: Simulation, kafka: FakeKafka) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.broken: list[str] = []
        self.cluster_id = kafka.cluster_id
        self._world = world
        self._kafka = kafka
        self._states = ClusterStates(world, kafka)

    def now_s(self) -> float:
        """Return the time of the world."""
        return self._world.now_s

    def topic(self, name: str) -> Topic:
        """Return the state of a topic in the cluster."""
        image = self._kafka.controller.image.topics.get(name)
        return Topic() if image is None else Topic(len(image.partitions), image.config.get("retention.ms"))

    def offset(self) -> int:
        """Return the group's offset of t-0."""
        return self._kafka.committed_offsets(GROUP).get(("t", 0), -1)

    def judge_read(self, what: str, told: object, expected: Callable[[State], object], from_s: float) -> None:
        """Judge the result of a read that began at a time: a broker has known this state since then."""
        states = [expected(state) for state in self._states.since(from_s)]
        if told not in states:
            self.broken.append(f"{what}: {told} was returned; since {from_s:.3f} the brokers knew {states}")

    def judge(self, what: str, change: Change, before: object, actual: object, errors: list[str], text: str) -> None:
        """Judge a call that has come to an end: its effect on the state, and its errors."""
        self.calls[what.split()[0]] += 1
        self.failures.update(errors)
        if actual not in ((before, change.after) if errors else (change.after,)):
            self.broken.append(f"{what}: from {before} the cluster came to {actual}; the call ended with {text}")
        if set(errors) - {change.error, "DeadlineExceeded"}:
            self.broken.append(f"{what} from {before} has failed with {text}")


def scenario(world: Simulation) -> dict[str, object]:
    settings = {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    settings |= {"super.users": "User:admin", "transaction.version": world.random.choice(["1", "2"])}
    users = {"admin": "admin-secret", "etl": "etl-secret"}
    kafka = FakeKafka(BROKERS, record_requests=False, settings=settings, users=users)
    kafka.create_topic("t", PARTITIONS, BROKERS)
    is_balanced = world.random.random() < 0.5
    servers = bootstrap_servers(world, kafka) if is_balanced else kafka.bootstrap_servers
    common = {
        "bootstrap.servers": servers,
        "metadata.max.age.ms": METADATA_AGE_MS,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
    }
    common |= {"default.api.timeout.ms": TIMEOUT_MS}
    etl, administrator = (kafka.client_properties(user, "PLAIN") | common for user in ("etl", "admin"))
    model = Model(world, kafka)
    acknowledged: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
    consumed: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    stop: list[bool] = []
    admin = world.start(administer, administrator, model, stop, name="admin")
    producer = world.start(produce, etl, acknowledged, model.broken, stop, name="producer")
    consumer = world.start(consume, etl, consumed, model.broken, name="consumer")

    def clients() -> list[Process]:
        return [process for process in (producer, consumer) if process.alive]

    schedule = [
        *[fault for fault in cluster_faults(world, kafka, KINDS) if is_balanced or fault[0] not in _OF_BROKERS],
        *network_faults(world, kafka, clients),
        *[fault for fault in network_faults(world, kafka, lambda: [admin]) if fault[0] not in _LATE_ARRIVALS],
        *acl_faults(world, kafka, [("Topic", "t")]) * 3,
    ]
    faults = world.start_faults(schedule, every_s=(0.2, 1.2))
    first_brokers = list(kafka.brokers)
    for broker_id in first_brokers:
        world.sleep(world.random.uniform(1, 5))
        if not is_balanced:
            # Clients that cannot reach any broker until all are replaced would not find the new ones.
            heal(world, kafka)
            world.sleep(TIMEOUT_MS / 1000 + 2 * METADATA_AGE_MS / 1000)
        if broker_id in kafka.brokers:
            world.trace(f"broker {kafka.replace_broker(broker_id)} replaces {broker_id}")
    world.sleep(2)
    faults.stop()
    settle(world, kafka)
    assert not kafka.brokers.keys() & set(first_brokers)
    counts = {partition: len(rows) for partition, rows in acknowledged.items()}
    calls = model.calls.total()
    world.wait_until(
        lambda: all(len(rows) > counts[partition] for partition, rows in acknowledged.items()),
        60,
        "the producer writes to the new brokers",
    )
    world.wait_until(lambda: model.calls.total() > calls + 5, 60, "the administrator reaches the new brokers")
    stop.append(True)
    for process in (admin, producer):
        process.join(60)
    logs = {number: [int(message.value) for message in kafka.records("t", number)] for number in range(PARTITIONS)}
    world.wait_until(
        lambda: all(len(consumed[number]) >= len(log) for number, log in logs.items()), 60, "the consumer has all"
    )
    consumer.kill()
    assert not model.broken, model.broken[:3]
    for number, log in logs.items():
        assert consumed[number] == log, f"t-{number}: consumed {consumed[number]} of {log}"
        assert log == sorted(set(log)), f"t-{number}: twice, or out of order: {log}"
        lost = [row for row in acknowledged[number] if row[0] >= len(log) or log[row[0]] != row[1]]
        assert not lost, f"t-{number}: acknowledged, and not in the log: {lost}"
    return {"balanced": is_balanced, "records": sum(map(len, logs.values())), **model.calls, **model.failures}


def produce(
    properties: dict[str, object], acknowledged: dict[int, list[tuple[int, int]]], broken: list[str], stop: list[bool]
) -> None:
    """Write increasing numbers, and note which offsets the cluster acknowledged."""
    number = 0
    with Producer({**properties, "linger.ms": "5", "delivery.timeout.ms": str(TIMEOUT_MS)}) as producer:
        while not stop:
            futures = []
            for _ in range(8):
                try:
                    futures.append((number, producer.send("t", b"%d" % number, partition=number % PARTITIONS)))
                except KafkaError:  # no metadata
                    time.sleep(0.2)
                number += 1
            started_s = time.monotonic()
            for value, future in futures:
                try:
                    metadata = future.result()
                except KafkaError:
                    continue
                acknowledged[metadata.partition].append((metadata.offset, value))
            # A request that is in flight when a batch expires may need its whole timeout.
            if (took_s := time.monotonic() - started_s) > (TIMEOUT_MS + REQUEST_TIMEOUT_MS) / 1000 + LATE_S:
                broken.append(f"results of records came after {took_s:.1f} s")
            time.sleep(random.choice([0.1, 1]))


def consume(properties: dict[str, object], consumed: dict[int, list[int]], broken: list[str]) -> None:
    """Read all partitions from the start."""
    consumer = KafkaConsumer({**properties, "auto.offset.reset": "earliest"})
    consumer.assign([("t", partition) for partition in range(PARTITIONS)])
    while True:
        started_s = time.monotonic()
        try:
            for (_, partition), batches in consumer.poll(500).items():
                for batch in batches:
                    consumed[partition] += [int(value) for value in batch.column("value").to_pylist()]
        except KafkaError:
            pass
        if (took_s := time.monotonic() - started_s) > 0.5 + LATE_S:
            broken.append(f"poll(500) took {took_s:.1f} s")


def administer(properties: dict[str, object], model: Model, stop: list[bool]) -> None:
    """Change topics and offsets with one `Admin`; the model judges each call when it ends."""
    with Admin(properties) as admin:
        while not stop:
            random.choice([change_topic, change_topic, change_topic, change_offset, describe])(admin, model)
            time.sleep(random.uniform(0, 0.5))


def change_topic(admin: Admin, model: Model) -> None:
    """Create a topic that does not exist; add partitions to one that exists, configure it or delete it."""
    name = random.choice(NAMES)
    before = model.topic(name)
    count, retention_ms = before.partitions + random.randint(1, 3), str(random.randint(10**8, 10**9))
    new = NewTopic(name, count, BROKERS - 1, {"retention.ms": retention_ms})
    change = {topic_resource(name): [AlterConfigOp("retention.ms", retention_ms)]}
    # By kind: the call, the state after it, and the error if the reply to an earlier attempt was lost.
    create = Change(lambda: admin.create_topics([new]), Topic(count, retention_ms), "TOPIC_ALREADY_EXISTS")
    changes = {
        "grow": Change(
            lambda: admin.create_partitions({name: count}), before._replace(partitions=count), "INVALID_PARTITIONS"
        ),
        "configure": Change(
            lambda: admin.incremental_alter_configs(change), before._replace(retention_ms=retention_ms)
        ),
        "delete": Change(lambda: admin.delete_topics([name]), Topic(), "UNKNOWN_TOPIC_OR_PARTITION"),
    }
    kind = random.choice(list(changes)) if before.partitions else "create"
    judge(model, f"{kind} {name}", changes.get(kind, create), before, lambda: model.topic(name))


def change_offset(admin: Admin, model: Model) -> None:
    """Set the offset of a group without members."""
    before, offset = model.offset(), random.randint(0, 1_000)
    change = Change(lambda: admin.alter_consumer_group_offsets(GROUP, {("t", 0): CommittedOffset(offset)}), offset)
    judge(model, "offset", change, before, model.offset)


def describe(admin: Admin, model: Model) -> None:
    """Read the state, which changes nothing; a broker may not know the newest yet."""
    name = random.choice(["t", *(name for name in NAMES if model.topic(name).partitions)])
    described = {
        "topics": Read(admin.list_topics, topic_ids, lambda state: state.topic_ids),
        "partitions": Read(lambda: describe_topic(admin, name), partitions, lambda state: state.partitions(name)),
        "cluster": Read(admin.describe_cluster, brokers, lambda state: (model.cluster_id, *state.brokers)),
        "configs": Read(
            lambda: describe_topic(admin, name, configs=True),
            retention_ms,
            lambda state: state.retention_ms(name, RETENTION_MS),
        ),
    }
    kind = random.choice([*described, "offsets"])
    if kind == "offsets":
        offset = model.offset()
        change = Change(lambda: admin.list_consumer_group_offsets(GROUP), None)
        for offsets in judge(model, kind, change, None, lambda: None):
            told = {key: committed.offset for key, committed in offsets.items()}
            if told != ({("t", 0): offset} if offset >= 0 else {}):
                model.broken.append(f"offsets {told} were returned, the offset of t-0 is {offset}")
        return
    read, from_s = described[kind], model.now_s()
    for result in judge(model, kind, Change(read.call, None), None, lambda: None):
        model.judge_read(f"{kind} of {name}", read.told(result), read.expected, from_s)


def describe_topic(admin: Admin, name: str, *, configs: bool = False) -> Mapping[str, TopicDescription]:
    """Return the description of a topic by name, or none if a broker does not know the topic."""
    try:
        return admin.describe_topics([name], configs=configs)
    except AdminFailed as failed:
        if {error.context.get("name") for error in failed.errors.values()} != {"UNKNOWN_TOPIC_OR_PARTITION"}:
            raise
        return {}


def topic_ids(listings: Mapping[str, TopicListing]) -> dict[str, str]:
    return {name: listing.topic_id for name, listing in listings.items() if listing.name == name}


def partitions(descriptions: Mapping[str, TopicDescription]) -> list[PartitionRow]:
    return [
        (row.leader, row.leader_epoch, row.replicas, row.isr)
        for description in descriptions.values()
        for _, row in sorted(description.partitions.items())
    ]


def retention_ms(descriptions: Mapping[str, TopicDescription]) -> str | None:
    values = [description.configs["retention.ms"].value for description in descriptions.values() if description.configs]
    return values[0] if values else None


def brokers(description: ClusterDescription) -> tuple[str | None, int, dict[int, tuple[str, int]]]:
    addresses = {key: (broker.host, broker.port) for key, broker in description.brokers.items()}
    return description.cluster_id, description.controller, addresses


def judge(model: Model, what: str, change: Change, before: object, state: Callable[[], object]) -> list[Any]:
    """Make a call, and let the model judge it; return a list of its result, empty after an error."""
    started_s = time.monotonic()
    errors: list[str] = []
    text = "no error"
    results = []
    try:
        results.append(change.call())
    except KafkaError as error:
        causes = list(error.errors.values()) if isinstance(error, AdminFailed) else [error]
        errors = [str(cause.context.get("name", type(cause).__name__)) for cause in causes]
        text = str(error)
    if (took_s := time.monotonic() - started_s) > TIMEOUT_MS / 1000 + LATE_S:
        model.broken.append(f"{what} took {took_s:.1f} s and ended with {text}")
    model.judge(what, change, before, state(), errors, text)
    return results
