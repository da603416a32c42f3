"""Members of a group that come, go, are killed and paused: no record is skipped, and commits are honest.

In a part of the runs the topic is recreated, and its logs lose their beginnings and ends.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from protocol import ConsumerRebalanceListener, KafkaConsumer, KafkaError, Producer, UsageError
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, CommitFailed
from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka
from protocol.testing.simulation import (
    KAFKA_2_8,
    Process,
    Simulation,
    acl_faults,
    bootstrap_servers,
    cluster_faults,
    log_faults,
    network_faults,
    process_faults,
    topic_faults,
)
from tests.simulation.group_model import GroupModel, leave_and_judge, log_ends, wait_until_complete

PARTITIONS = 6
DURATION_S = 12.0
MEMBERS = 3
# A request to a silent broker ends after its timeout; that of JoinGroup is max.poll.interval.ms and more.
JOINS_WITHIN_S = 400.0
LOSSES_RATE = 0.4
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky", None, None)
COMMITS = ("sync", "async", "auto")
CONTINUES = "reading continues at offset %d"
KINDS = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit", "OffsetFetch", "Fetch")


def scenario(world: Simulation) -> dict[str, object]:
    """Run members of a group under faults; without faults, members only come and go, and no record comes twice."""
    settings = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}
    settings |= {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    versions = world.random.choice([None, None, KAFKA_2_8])
    kafka = FakeKafka(3, record_requests=False, settings=settings, newest_versions=versions)
    kafka.create_topic("t", PARTITIONS, 3)
    servers = bootstrap_servers(world, kafka)
    assignor = world.random.choice([name for name in ASSIGNORS if name or versions is None])
    commits = world.random.choice(COMMITS)
    calm = world.random.random() < 0.2
    is_static = world.random.random() < 0.3
    has_losses = not calm and world.random.random() < LOSSES_RATE
    model = GroupModel(
        kafka,
        "g",
        world.trace,
        has_losses=has_losses,
        assigns_by_id=assignor is None,
        loses_replies=not calm,
    )
    hear_of_losses(world, model)
    leaving: set[str] = set()
    free_instances = [f"i{number}" for number in range(MEMBERS + 2)]
    instances: dict[str, str] = {}

    def join(instance: str = "") -> None:
        if is_static and not instance:
            if not free_instances:
                return
            instance = free_instances.pop()
        name = f"member-{len(world.processes)}"
        instances[name] = instance
        properties = options(assignor, commits, instance)
        world.start(member, servers, properties, model, leaving, name, commits == "async", name=name)

    def join_again(process: Process) -> None:
        if not all_leave:
            join(instances[process.name])

    def leave() -> None:
        staying = [process.name for process in world.alive("member") if process.name not in leaving]
        ids = Counter(instances[name] or name for name in staying)
        # Of processes with one instance id, any may be the member.
        may_leave = [name for name in staying if ids[instances[name] or name] == 1]
        if len(ids) > 1 and may_leave:
            leaving.add(world.fault_random.choice(may_leave))

    def take_instance() -> None:
        staying = [process.name for process in world.alive("member") if process.name not in leaving]
        if staying:
            join(instances[world.fault_random.choice(staying)])

    def pause_beyond_session() -> None:
        pause_s = world.fault_random.uniform(7.5, 10)
        members = [process for process in world.alive("member") if process.held is None]
        if members and "t" in kafka.controller.image.topics:
            process = world.fault_random.choice(members)
            model.paused(process.name, log_ends(kafka))
            world.later(pause_s - 0.05, lambda: model.continues(process.name))
            process.pause(pause_s)

    def rebalance() -> None:
        with suppress(UsageError):  # no classic group with members at this time
            kafka.rebalance("g")

    all_leave: list[bool] = []
    for _ in range(MEMBERS):
        join()
    producer = world.start(produce, servers, name="producer")
    schedule = [("a member joins", join), ("a member leaves", leave)]
    if not calm:
        schedule += [
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka, lambda: world.alive("member")),
            *process_faults(world, lambda: world.alive("member"), join_again),
            *acl_faults(world, kafka, [("Topic", "t"), ("Group", "g")]),
            *topic_faults(world, kafka, "t", 2 * PARTITIONS),
            ("rebalance", rebalance),
            *[("pause a member for longer than its session", pause_beyond_session)] * 8,
        ]
    if has_losses:
        # Brokers before Kafka 4.1 take a commit that was sent before the topic was recreated.
        recreated = model.recreated if versions is None else None
        schedule += log_faults(world, kafka, "t", deleted=model.deleted, lost=model.lost) * 10
        schedule += topic_faults(world, kafka, "t", 2 * PARTITIONS, recreated)[1:] * 8
        if is_static:
            schedule += [("a second process has the instance id of a member", take_instance)] * 15
    faults = world.start_faults(schedule, (1.0, 3.0) if calm else (0.1, 0.8) if has_losses else (0.2, 1.5))
    producer.join(DURATION_S + 200)
    faults.stop()
    ends = wait_until_complete(world, kafka, model, calm=calm)
    if is_static:
        if assignor is not None:  # with the consumer protocol, the second process waits until the first one has left
            text = "one member with each instance id"
            world.wait_until(lambda: not shared_instances(world, model, instances), JOINS_WITHIN_S, text)
        judge_instances(model, instances)
    all_leave.append(True)
    leave_and_judge(world, model, leaving, calm=calm)
    return {
        "older": versions is not None,
        "records": sum(ends.values()),
        "assignor": assignor,
        "commits": commits,
        "static": is_static,
        "calm": calm,
        "members": len(world.processes) - 1,
        "twice": len(model.twice),
        "losses": has_losses,
        "told": model.losses,
        "fenced": len(model.fenced),
    }


def shared_instances(world: Simulation, model: GroupModel, instances: dict[str, str]) -> list[str]:
    """Return the instance ids that more than one process has that was not fenced yet."""
    ids = [instances[process.name] for process in world.alive("member") if process.name not in model.fenced]
    return [instance for instance, count in Counter(ids).items() if count > 1]


def judge_instances(model: GroupModel, instances: dict[str, str]) -> None:
    """Judge processes with one instance id: the last one is not fenced."""
    for name in model.fenced:
        if not any(instances[name] == instance and other not in model.fenced for other, instance in instances.items()):
            model.fail(f"all processes with the id {instances[name]} are fenced")


def hear_of_losses(world: Simulation, model: GroupModel) -> None:
    """Pass the warnings of members about lost positions to the model."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, str) and record.msg.endswith(CONTINUES):
                loss, offset = record.args
                model.told(world.scheduler.current.process.name, loss.context["partition"], offset)

    logging.getLogger("protocol.consumer.assigned_partitions").addHandler(Handler())


def options(assignor: str | None, commits: str, instance: str) -> dict[str, object]:
    """Return the properties of a member."""
    properties: dict[str, object] = {
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": commits == "auto",
        "auto.commit.interval.ms": 300,
        "metadata.max.age.ms": 2_000,
        # The longest wait for a reply to JoinGroup from a host that never answers.
        "max.poll.interval.ms": 60_000,
    }
    if instance:
        properties["group.instance.id"] = instance
    if assignor is None:
        return properties | {"group.protocol": "consumer"}
    classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": assignor}
    return properties | classic


def produce(servers: str) -> None:
    """Produce records until the end of the duration, to all partitions; new ones get those without a number."""
    end_s = time.monotonic() + DURATION_S
    number = 0
    properties = {"bootstrap.servers": servers, "metadata.max.age.ms": 1_000, "default.api.timeout.ms": 20_000}
    with Producer(properties) as producer:
        while time.monotonic() < end_s:
            with suppress(KafkaError):  # this user may not write now
                for _ in range(10):
                    producer.send("t", b"%d" % number, partition=number % PARTITIONS if number % 4 else None)
                    number += 1
                producer.flush()
            time.sleep(random.choice([0.1, 0.5]))


class Listener(ConsumerRebalanceListener):
    """Tells the model of new partitions, and commits revoked ones."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._member.assigned([partition for _, partition in partitions])

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._member.commit()

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Commit nothing: the partitions may have another owner."""


class Member:
    """A member of the group in its process."""

    def __init__(self, servers: str, properties: dict[str, object], model: GroupModel, name: str) -> None:
        self.model = model
        self.name = name
        self._commits_itself = not properties["enable.auto.commit"]
        self._instance = str(properties.get("group.instance.id", ""))
        self._consumer = KafkaConsumer({"bootstrap.servers": servers, **properties})
        self._processed: dict[int, int] = {}

    def run(self, leaving: set[str], is_async: bool) -> None:
        """Read, process and commit until the scenario wants the member to leave."""
        # A commit is refused: another member has the partitions, or the topic is another one.
        with suppress(CommitFailed), self._consumer as consumer:
            consumer.subscribe(["t"], Listener(self))
            while self.name not in leaving:
                try:
                    self._process()
                    if not is_async:
                        self.commit()
                    elif self._commits_itself:
                        consumer.commit_async()
                except KafkaError as error:
                    if isinstance(error, BrokerError) and error.code == ErrorCode.FENCED_INSTANCE_ID:
                        self.model.fenced.add(self.name)
                    time.sleep(0.05)
            with suppress(KafkaError):
                self.commit()

    def assigned(self, partitions: Collection[int]) -> None:
        """Start new partitions at their committed offsets."""
        self.model.assigned(self.name, partitions)
        for partition in partitions:
            self._processed.pop(partition, None)

    def _process(self) -> None:
        polled = self._consumer.poll(200)
        if not polled:
            return
        identity = self._consumer.group_metadata().member
        generation = max(identity.generation_id, identity.member_epoch)
        columns = {
            partition: [
                [value for batch in batches for value in batch.column(name).to_pylist()] for name in ("offset", "value")
            ]
            for (_, partition), batches in polled.items()
        }
        for partition, (offsets, values) in columns.items():
            self.model.delivered(
                self.name, identity.member_id, generation, partition, offsets, values, instance=self._instance
            )
        for partition, (offsets, values) in columns.items():
            time.sleep(0.01)
            self.model.processed(self.name, partition, offsets, values)
            self._processed[partition] = offsets[-1] + 1

    def commit(self) -> None:
        """Commit the positions, which are processed, and wait."""
        if self._commits_itself:
            positions = {
                partition: self._processed[partition]
                for _, partition in self._consumer.assignment
                if partition in self._processed
            }
            self._consumer.commit_sync()
            self.model.acknowledged(self.name, positions)


def member(
    servers: str, properties: dict[str, object], model: GroupModel, leaving: set[str], name: str, is_async: bool
) -> None:
    """Run a member of the group."""
    Member(servers, properties, model, name).run(leaving, is_async)
