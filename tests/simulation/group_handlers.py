"""`ConsumerGroup` and `Processor` with slow and failing handlers: order per key, dead letters, honest commits.

In a part of the runs, partitions stay empty, the records are in transactions, or a group that starts at the end of its
partitions is closed before their first record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from protocol import (
    ConsumerGroup,
    ConsumerRebalanceListener,
    KafkaConsumer,
    KafkaError,
    Processor,
    RetryPolicy,
)
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.session import ConsumerGroupClaim, ConsumerGroupSession
from protocol.fetch.partition_consumer import ConsumerMessage
from protocol.kafka_terms import TopicPartition
from protocol.processing import processor as processor_module
from protocol.testing import FakeKafka
from protocol.testing.simulation import (
    Process,
    Simulation,
    bootstrap_servers,
    cluster_faults,
    network_faults,
    process_faults,
)
from protocol.wire.messages.m01_fetch import FETCH
from tests.simulation.group_model import GroupModel, leave_and_judge, wait_until_complete
from tests.simulation.handler_topic import (
    DURATION_S,
    Content,
    HandlerTopic,
    is_flaky,
    is_poison,
    parsed,
    produce,
    produce_transactions,
)

PARTITIONS = 4
KINDS = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit", "OffsetFetch", "Fetch")


def scenario(world: Simulation) -> dict[str, object]:
    """Run members of one kind under faults; without faults, members only come and go, and no record comes twice."""
    settings = {"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "6000"}
    kafka = FakeKafka(3, record_requests=False, settings=settings)
    kafka.create_topic("t", PARTITIONS, 3)
    kafka.create_topic("dead", 1, 3)
    servers = bootstrap_servers(world, kafka)
    has_processor = world.random.random() < 0.6
    order = world.random.choice(("key", "partition"))
    assignor = world.random.choice(("range", "cooperative-sticky", None))
    calm = world.random.random() < 0.2
    filled = PARTITIONS - world.random.choice((0, 0, 1, 2))
    has_transactions = world.random.random() < 0.4
    starts_at_end = world.random.random() < 0.3
    properties = options(assignor) | {"auto.offset.reset": "latest" if starts_at_end else "earliest"}
    if has_transactions:
        properties["isolation.level"] = "read_committed"
    topic = HandlerTopic(kafka)
    dead: set[tuple[int, int]] = set()

    def is_done_otherwise(partition: int, offset: int) -> bool:
        if (value := topic.value(partition, offset)) is None:
            return topic.has_no_record(partition, offset)
        if has_processor and is_poison(parsed(value)[1]) and parsed(value) not in dead:
            dead.update(parsed(message.value) for message in kafka.records("dead"))
        return parsed(value) in dead

    def is_committed(ends: dict[int, int]) -> bool:
        """Return True if the lag is 0; with marks of a `ConsumerGroup`, markers may be behind the last record."""
        offsets = {partition: offset for (_, partition), offset in kafka.committed_offsets("g").items()}
        if offsets.keys() != set(range(PARTITIONS)):
            return False
        lags = {partition: range(offset, ends.get(partition, 0)) for partition, offset in offsets.items()}
        return not any(
            has_processor or topic.value(partition, offset) for partition, lag in lags.items() for offset in lag
        )

    model = GroupModel(kafka, "g", world.trace, is_done_otherwise, topic.has_no_record, loses_replies=not calm)
    calls = HandlerCalls(model, order)
    leaving: set[str] = set()

    def join(*_: Process) -> None:
        name = f"member-{len(world.processes)}"
        arguments = servers, properties, calls, leaving, name
        if not all_leave:
            target = run_processor if has_processor else run_group
            world.start(target, *arguments, name=name)

    def leave() -> None:
        staying = [process.name for process in world.alive("member") if process.name not in leaving]
        if len(staying) > 1:
            leaving.add(world.fault_random.choice(staying))

    def come_and_go() -> None:
        """A member of the new group is closed when it has positions in all partitions."""
        fetched: set[int] = set()
        kafka.before[FETCH] = lambda body: fetched.update(
            row["partition"] for topic in body["topics"] for row in topic["partitions"]
        )
        join()
        world.wait_until(lambda: len(fetched) == PARTITIONS, 60, "the first member reads all partitions")
        del kafka.before[FETCH]
        leaving.add(world.processes[-1].name)
        world.processes[-1].join(60)

    all_leave: list[bool] = []
    if starts_at_end:
        come_and_go()
    for _ in range(2):
        join()
    producer = world.start(produce_transactions if has_transactions else produce, servers, filled, name="producer")
    schedule = [("a member joins", join), ("a member leaves", leave)]
    if not calm:
        schedule += [
            *cluster_faults(world, kafka, KINDS),
            *network_faults(world, kafka, lambda: world.alive("member")),
            *process_faults(world, lambda: world.alive("member"), join),
        ]
    faults = world.start_faults(schedule, (1.0, 3.0) if calm else (0.2, 1.5))
    producer.join(DURATION_S + 200)
    faults.stop()
    ends = wait_until_complete(world, kafka, model, calm=calm, is_committed=is_committed)
    all_leave.append(True)
    # A handler that fails while its partition is revoked has no second attempt there; records of other keys behind it
    # are processed already, and the next owner processes them again.
    leave_and_judge(world, model, leaving, calm=calm and not (has_processor and order == "key"))
    assert all(is_poison(number) for _, number in dead), f"dead letters of good records: {sorted(dead)}"
    calls.judge_records(topic)
    topic.judge_dead_letters(kafka.records("dead"))
    return {
        "records": sum(ends.values()),
        "processor": has_processor,
        "order": order,
        "assignor": assignor,
        "calm": calm,
        "empty": PARTITIONS - filled,
        "transactions": has_transactions,
        "starts_at_end": starts_at_end,
        "members": len(world.processes) - 1,
        "twice": len(model.twice),
        "dead": len(dead),
    }


def options(assignor: str | None) -> dict[str, object]:
    """Return the properties of a member."""
    properties: dict[str, object] = {"group.id": "g", "auto.commit.interval.ms": 300}
    properties["max.poll.interval.ms"] = 60_000  # the longest wait for a JoinGroup that a host never answers
    if assignor is None:
        return properties | {"group.protocol": "consumer"}
    classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": assignor}
    return properties | classic


class HandlerCalls:
    """Calls of handlers in all processes: slow, failing, and judged for their order.

    A partition's lanes, its keys or itself, begin again when a member gets the partition.
    """

    def __init__(self, model: GroupModel, order: str) -> None:
        self._model = model
        self.by_key = order == "key"
        self._newest: dict[tuple[str, int], dict[bytes, int]] = {}
        self._attempts: dict[tuple[str, int, int], int] = {}
        self._records: dict[tuple[int, int], Content] = {}
        # By member and partition: the end of its marked records.
        self._marked: dict[tuple[str, int], int] = {}
        self._member_ids: dict[tuple[str, int], str] = {}
        # By partition and lane: members whose handlers run now, with their id and membership at the start.
        self._running: dict[tuple[int, bytes], dict[str, tuple[str, object]]] = {}

    def assigned(self, member: str, partitions: Collection[int]) -> None:
        """A member gets partitions."""
        marked = {partition: self._marked.get((member, partition), -1) for partition in partitions}
        self._model.assigned(member, partitions, marked)
        for partition in partitions:
            self._newest[member, partition] = {}

    def delivered(self, member: str, member_id: str, generation: int, partition: int, offsets: list[int]) -> None:
        """A member gets records, which its handlers have not seen yet."""
        self._member_ids[member, partition] = member_id
        self._model.delivered(member, member_id, generation, partition, offsets)

    def marked(self, member: str, message: ConsumerMessage) -> None:
        """A member marks a record."""
        self._marked[member, message.partition] = message.offset + 1

    def handle(self, member: str, message: ConsumerMessage, fails_always: bool) -> None:
        """Process a record; raise for failing ones."""
        partition, offset = message.partition, message.offset
        value = message.value or b""
        _, number = parsed(value)
        content = message.key, message.value, message.headers or []
        if self._records.setdefault((partition, offset), content) != content:
            self._model.fail(f"{member}: t-{partition}:{offset} differs from what it was before: {content}")
        lanes = self._newest.setdefault((member, partition), {})
        lane = (message.key or b"") if self.by_key else b""
        newest = lanes.get(lane, -1)
        if newest >= offset:
            self._model.fail(f"{member}: t-{partition}:{offset} of key {lane!r} is handled after {newest}")
        lanes[lane] = offset
        running = self._running.setdefault((partition, lane), {})
        member_id = self._member_ids[member, partition]
        membership = self._model.membership(member_id)
        for rival, (rival_id, membership_of_rival) in running.items():
            # A member that the group has removed does not know it yet, or has joined again while its handler runs.
            remains = membership_of_rival is not None and membership_of_rival is self._model.membership(rival_id)
            if rival_id != member_id and remains and membership is not None:
                self._model.fail(f"{member}: t-{partition}:{offset} is handled while {rival} handles key {lane!r}")
        running[member] = member_id, membership
        time.sleep(0.01 + offset % 5 * 0.02)
        running.pop(member, None)
        if lanes.get(lane) != offset:
            self._model.fail(f"{member}: {lanes[lane]} is handled at the same time as t-{partition}:{offset}")
        attempt = self._attempts[member, partition, offset] = self._attempts.get((member, partition, offset), 0) + 1
        if (fails_always and is_poison(number)) or (is_flaky(number) and attempt % 2):
            lanes[lane] = offset - 1  # this offset comes again
            raise ValueError(f"the handler fails for {value!r}")
        self._model.processed(member, partition, [offset])

    def judge_records(self, topic: HandlerTopic) -> None:
        """Fail if a handler got a record that the log does not have, such as one of an aborted transaction."""
        wrong = {key: content for key, content in self._records.items() if topic.content(*key) != content}
        assert not wrong, f"handled, and not in the log: {wrong}"


class Listener(ConsumerRebalanceListener):
    """Tells the judge of new partitions."""

    def __init__(self, calls: HandlerCalls, name: str) -> None:
        self._calls = calls
        self._name = name

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._calls.assigned(self._name, [partition for _, partition in partitions])


class WatchedConsumer(KafkaConsumer):
    """The consumer of a `Processor`, which tells the judge what each poll returns."""

    calls: HandlerCalls
    name: str

    def poll(self, timeout_ms: float) -> ConsumerRecords:
        """Poll, and report the records."""
        polled = super().poll(timeout_ms)
        identity = self.group_metadata().member
        for (_, partition), batches in polled.items():
            offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
            generation = identity.generation_id_or_member_epoch
            self.calls.delivered(self.name, identity.member_id, generation, partition, offsets)
        return polled


def run_processor(
    servers: str, properties: dict[str, object], calls: HandlerCalls, leaving: set[str], name: str
) -> None:
    """Run a `Processor`, and another one after an error, until the scenario wants the member to leave."""
    settings = {"bootstrap.servers": servers, "enable.auto.commit": False, **properties}
    WatchedConsumer.calls, WatchedConsumer.name = calls, name
    processor_module.KafkaConsumer = WatchedConsumer  # type: ignore[attr-defined]
    while name not in leaving:
        processor = Processor(
            settings,
            lambda message: calls.handle(name, message, fails_always=True),
            ["t"],
            order="key" if calls.by_key else "partition",
            retry=RetryPolicy(2, backoff_ms=20),
            dead_letter_topic="dead",
            listener=Listener(calls, name),
        )
        threading.Thread(target=close_when_leaving, args=(processor, leaving, name), daemon=True).start()
        try:
            processor.run()
        except KafkaError:
            continue


def close_when_leaving(closeable: Processor | ConsumerGroup, leaving: set[str], name: str) -> None:
    """Close when the scenario wants the member to leave."""
    while name not in leaving:
        time.sleep(0.1)
    closeable.close()


class Handler:
    """Processes the records of claims, and marks them."""

    def __init__(self, calls: HandlerCalls, name: str) -> None:
        self._calls = calls
        self._name = name

    def setup(self, session: ConsumerGroupSession) -> None:
        """Do nothing."""

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        """Process a claim's records; a failing one ends the session."""
        self._calls.assigned(self._name, [claim.partition])
        for message in claim.messages():
            identity = session.member_id, session.generation_id
            self._calls.delivered(self._name, *identity, claim.partition, [message.offset])
            self._calls.handle(self._name, message, fails_always=False)
            self._calls.marked(self._name, message)
            session.mark_message(message)

    def cleanup(self, session: ConsumerGroupSession) -> None:
        """Do nothing."""


def run_group(servers: str, properties: dict[str, object], calls: HandlerCalls, leaving: set[str], name: str) -> None:
    """Run sessions of a `ConsumerGroup` until the scenario wants the member to leave."""
    group = ConsumerGroup({"bootstrap.servers": servers, **properties})
    threading.Thread(target=close_when_leaving, args=(group, leaving, name), daemon=True).start()
    while not group.closed:
        try:
            group.consume(["t"], Handler(calls, name))
        except (KafkaError, ValueError):
            continue
    group.close()
