"""Usual faults of a cluster, a network and processes, as lists for `Simulation.start_faults`.

Each fault draws its numbers from `Simulation.fault_random`, so that a run without it draws the same ones elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from protocol.testing.simulation.process import Process
from protocol.testing.simulation.simulation import Fault, Simulation

if TYPE_CHECKING:
    from protocol.testing.fake_kafka.replica import Replica
    from protocol.testing.fake_kafka.server import FakeKafka

KINDS = (
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "ApiVersions",
    "ConsumerGroupHeartbeat",
    "EndTxn",
    "Fetch",
    "FindCoordinator",
    "Heartbeat",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
    "Produce",
    "SyncGroup",
    "TxnOffsetCommit",
)
_REFUSALS = {
    "AddOffsetsToTxn": ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"),
    "AddPartitionsToTxn": ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "ConsumerGroupHeartbeat": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "DescribeTransactions": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "EndTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "Fetch": (
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"),
    "Heartbeat": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "LeaveGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "ListOffsets": (
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "OFFSET_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
    ),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "UNSTABLE_OFFSET_COMMIT"),
    "OffsetForLeaderEpoch": (
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ),
    "Produce": (
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_OR_FOLLOWER",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ),
    "SyncGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "TxnOffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
}
"""Retriable errors of the cluster by kind of request."""
_WAITING_RATE = 0.25
_LONGEST_FAULT_S = 15.0


KAFKA_2_8 = {
    "AddOffsetsToTxn": 3,
    "AddPartitionsToTxn": 3,
    "AlterPartitionReassignments": 0,
    "ApiVersions": 3,
    "ConsumerGroupDescribe": -1,
    "ConsumerGroupHeartbeat": -1,
    "CreateAcls": 2,
    "CreateDelegationToken": 2,
    "DeleteAcls": 2,
    "DeleteGroups": 2,
    "DescribeAcls": 2,
    "DescribeCluster": 0,
    "DescribeDelegationToken": 2,
    "DescribeGroups": 5,
    "DescribeLogDirs": 2,
    "DescribeTransactions": -1,
    "EndTxn": 3,
    "Fetch": 12,
    "FindCoordinator": 3,
    "InitProducerId": 4,
    "JoinGroup": 7,
    "LeaveGroup": 4,
    "ListConfigResources": -1,
    "ListGroups": 4,
    "ListOffsets": 6,
    "ListTransactions": -1,
    "Metadata": 11,
    "OffsetCommit": 8,
    "OffsetFetch": 7,
    "Produce": 9,
    "TxnOffsetCommit": 3,
    "UpdateFeatures": 0,
}
"""Newest versions of Kafka 2.8, for `FakeKafka(newest_versions=…)`."""


def bootstrap_servers(world: Simulation, kafka: FakeKafka) -> str:
    """Return the address of a load balancer in front of the brokers, which stays when brokers move or are replaced."""
    network, port = world.network, world.network.port()

    def running() -> int:
        brokers = [broker_id for broker_id, broker in kafka.brokers.items() if broker.running] or list(kafka.brokers)
        return kafka.addresses[network.random.choice(brokers)][1]

    network.balancers[port] = running
    return f"brokers:{port}"


def all_in_cluster(kafka: FakeKafka) -> bool:
    """Return True if all brokers run, respond, and act by the controller's newest decisions."""
    brokers = kafka.brokers.values()
    present = len(kafka.controller.image.brokers) == len(brokers)
    return present and all(broker.is_reachable for broker in brokers)


def cluster_faults(world: Simulation, kafka: FakeKafka, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Return faults of brokers, leaders, coordinators and replies; at most one broker is away at a time.

    Brokers are also replaced, so that all addresses of the start may be gone: clients need `bootstrap_servers`.

    Parameters
    ----------
    kinds : sequence of str
        Kinds of requests that are lost, refused or delayed.
    """

    def kind() -> str:
        return world.fault_random.choice(list(kinds))

    def times() -> int:
        return world.fault_random.randrange(1, 4)

    def refuse() -> None:
        name = world.fault_random.choice([name for name in kinds if name in _REFUSALS] or ["Fetch"])
        kafka.refuse(name, world.fault_random.choice(_REFUSALS[name]), times())

    def away(leave: Callable[[int], Any], come_back: Callable[[int], Any], limits_s: tuple[float, float]) -> None:
        if all_in_cluster(kafka):
            broker_id = world.fault_random.choice(list(kafka.brokers))
            leave(broker_id)
            world.later(world.fault_random.uniform(*limits_s), lambda: _if_away(kafka, broker_id, come_back))

    return [
        ("lose requests", lambda: kafka.lose_requests(kind(), times())),
        ("lose replies", lambda: kafka.lose_replies(kind(), times())),
        ("refuse requests", refuse),
        ("delay replies", lambda: kafka.delay_replies(kind(), world.fault_random.uniform(0.1, 6), times())),
        ("drop a broker's connections", lambda: kafka.drop_connections(world.fault_random.choice([*kafka.brokers]))),
        ("move leaders", kafka.shuffle_leaders),
        ("move coordinators", kafka.rehash_coordinators),
        ("stop a broker", lambda: away(kafka.stop, kafka.start, (0.5, 8))),
        ("move a broker to another port", lambda: away(kafka.move, lambda broker_id: None, (0, 0.1))),
        ("replace a broker", lambda: away(kafka.replace_broker, lambda broker_id: None, (0, 0.1))),
        ("silence a broker", lambda: away(kafka.silence, lambda broker_id: kafka.silence(broker_id, False), (0.5, 15))),
        ("fence a broker", lambda: away(kafka.fence, lambda broker_id: kafka.silence(broker_id, False), (0.5, 4))),
        ("isolate a broker", lambda: away(kafka.isolate, lambda broker_id: kafka.isolate(broker_id, False), (0.5, 4))),
    ]


def _if_away(kafka: FakeKafka, broker_id: int, come_back: Callable[[int], Any]) -> None:
    broker = kafka.brokers.get(broker_id)
    if broker is not None and (come_back != kafka.start or not broker.running):
        come_back(broker_id)


def heal(world: Simulation, kafka: FakeKafka) -> None:
    """End all faults of the cluster and the network that `cluster_faults` and `network_faults` have begun."""
    kafka.clear_faults()
    world.network.heal()
    for broker_id, broker in list(kafka.brokers.items()):
        if not broker.running:
            kafka.start(broker_id)
        kafka.isolate(broker_id, False)
        kafka.silence(broker_id, False)


def settle(world: Simulation, kafka: FakeKafka) -> None:
    """Call `heal` at once or, in some runs, after the longest of the temporary faults.

    Pauses and restarts of `process_faults` may still follow.
    """
    if world.random.random() < _WAITING_RATE:
        world.sleep(_LONGEST_FAULT_S)
    heal(world, kafka)


LogChange = Callable[[int, int, int], object]
"""Receives a partition and the offsets between which it loses records."""


def log_faults(
    world: Simulation,
    kafka: FakeKafka,
    topic: str,
    *,
    deleted: LogChange,
    lost: LogChange,
    compacted: Callable[[], object] | None = None,
) -> list[Fault]:
    """Return faults after which the logs of a topic lack records that were acknowledged.

    Parameters
    ----------
    deleted, lost : callable
        Called before retention deletes the beginning of a log, and before an unclean election loses the end of one. The
        cluster does not change between the call and the fault.
    compacted : callable, optional
        Called after a compaction of all partitions, which needs a topic with `cleanup.policy=compact`.
    """

    def on_log(change: Callable[[int, Replica], None]) -> Callable[[], None]:
        def act() -> None:
            with kafka.changed:
                if any(broker.isolated for broker in kafka.brokers.values()):
                    return  # an isolated leader would continue to serve the log as it was
                image = kafka.controller.image.topics.get(topic)
                if image is None:
                    return
                number = world.fault_random.randrange(len(image.partitions))
                leader = kafka.brokers.get(image.partitions[number].leader)
                # A leader that is away may not know that it has the replica, and would not hear of its next epoch.
                if leader is not None and leader.is_reachable:
                    change(number, leader.replicas[image.topic_id, number])

        return act

    def delete(partition: int, replica: Replica) -> None:
        former_start = replica.log.start_offset
        start = max(former_start, replica.high_watermark - world.fault_random.randrange(20))
        deleted(partition, former_start, start)
        kafka.shrink_log(topic, partition, start)

    def truncate(partition: int, replica: Replica) -> None:
        log = replica.log
        end = world.fault_random.choice([*(batch.base_offset for batch in log.batches[-8:]), log.end_offset])
        lost(partition, end, log.end_offset)
        kafka.truncate_log(topic, partition, end)

    def compact(changed: Callable[[], object]) -> None:
        with kafka.changed:
            kafka.clean_logs(topic)
            changed()

    faults = [("delete old records", on_log(delete)), ("lose the end of a log", on_log(truncate))]
    return faults if compacted is None else [*faults, ("compact logs", lambda: compact(compacted))]


def topic_faults(
    world: Simulation,
    kafka: FakeKafka,
    topic: str,
    max_partitions: int,
    recreated: Callable[[], object] | None = None,
) -> list[Fault]:
    """Return changes of a topic: more partitions and, with `recreated`, its deletion and recreation.

    Parameters
    ----------
    recreated : callable, optional
        Called before the topic is deleted. The new topic, which exists up to 2 s later, has its former partition count.
    """

    def grow() -> None:
        image = kafka.controller.image.topics.get(topic)
        if image is not None and len(image.partitions) < max_partitions:
            kafka.create_partitions(topic, len(image.partitions) + 1)

    def recreate(before: Callable[[], object]) -> None:
        with kafka.changed:
            image = kafka.controller.image.topics.get(topic)
            if image is None or not all_in_cluster(kafka):
                return
            before()
            kafka.delete_topic(topic)
        count, copies = len(image.partitions), len(image.partitions[0].replicas)

        def create() -> None:
            kafka.create_topic(topic, count, min(copies, len(kafka.controller.image.brokers)), config=image.config)

        world.later(world.fault_random.uniform(0, 2), create)

    faults: list[Fault] = [("add a partition", grow)]
    return faults if recreated is None else [*faults, ("recreate the topic", lambda: recreate(recreated))]


def acl_faults(world: Simulation, kafka: FakeKafka, resources: Sequence[tuple[str, str]]) -> list[Fault]:
    """Return the fault that users may not read, write or describe a resource for up to 4 s.

    Parameters
    ----------
    kafka : FakeKafka
        With an authorizer: the setting `authorizer.class.name`.
    resources : sequence of (str, str)
        Types and names, such as ("Topic", "orders").
    """

    def deny() -> None:
        kind, name = world.fault_random.choice(resources)
        allow = kafka.deny(world.fault_random.choice(["Read", "Write", "Describe"]), kind, name)
        world.later(world.fault_random.uniform(0.2, 4), allow)

    return [("deny an operation", deny)]


def network_faults(
    world: Simulation, kafka: FakeKafka, clients: Callable[[], list[Process]] | None = None
) -> list[Fault]:
    """Return faults of connections between clients and brokers.

    Parameters
    ----------
    clients : callable, optional
        Returns the processes to choose from; by default all that have not ended.
    """
    network = world.network

    def client() -> Process | None:
        processes = (clients or world.alive)()
        return world.fault_random.choice(processes) if processes else None

    def port() -> int:
        return kafka.addresses[world.fault_random.choice(list(kafka.brokers))][1]

    def to_server() -> bool:
        return world.fault_random.random() < 0.5

    def for_a_while(name: str, process: Process | None, of: int | None) -> None:
        link = network.link(process, of)
        setattr(link, name, True)

        def end() -> None:
            setattr(link, name, False)
            network.release_held()

        world.later(world.fault_random.uniform(0.5, 12), end)

    def deaf() -> None:
        at, faulty = port(), network.heals
        for_a_while("deaf", client(), at)
        world.later(12.5, lambda: network.cut(port=at) if faulty == network.heals else None)

    def redirect() -> None:
        at, to = port(), port()
        network.redirects[at] = to
        network.cut(port=at)
        world.later(world.fault_random.uniform(0.5, 5), lambda: network.end_redirect(at))

    def slow() -> None:
        link = network.link(client(), port())
        link.latency_s = (0.05, world.fault_random.uniform(0.1, 1.5))

        def end() -> None:
            link.latency_s = network.default.latency_s

        world.later(world.fault_random.uniform(1, 6), end)

    def narrow() -> None:
        link = network.link(client(), port())
        link.bytes_per_s = world.fault_random.choice([1e3, 1e4, 1e5])

        def end() -> None:
            link.bytes_per_s = network.default.bytes_per_s

        world.later(world.fault_random.uniform(1, 6), end)

    return [
        ("cut a process's connections", lambda: network.cut(client())),
        ("cut connections to a broker", lambda: network.cut(port=port())),
        ("make connections half-open", lambda: network.half_open(client(), port())),
        ("lose a message", lambda: network.lose_next(to_server=to_server(), client=client(), port=port())),
        ("deliver half a message", lambda: network.halve_next(to_server=to_server(), client=client(), port=port())),
        (
            "deliver half a message, then reset",
            lambda: network.halve_next(to_server=to_server(), client=client(), port=port(), reset=True),
        ),
        ("partition", lambda: for_a_while("blocked", client(), port())),
        ("refuse connections", lambda: for_a_while("refused", client(), port())),
        ("a broker accepts and never answers", deaf),
        ("a name resolves to another broker", redirect),
        ("high latency", slow),
        ("low bandwidth", narrow),
    ]


def process_faults(
    world: Simulation, processes: Callable[[], list[Process]], restart: Callable[[Process], Any] | None = None
) -> list[Fault]:
    """Return faults of processes: pauses, clock jumps and, with `restart`, kills.

    Parameters
    ----------
    processes : callable
        Returns the processes to choose from, such as `lambda: world.alive("member")`.
    restart : callable, optional
        Called with the process that was killed, up to 5 s later, to start another one; also after the faults were
        stopped. Its `name` tells which one.
    """

    def on_one(action: Callable[[Process], Any]) -> Callable[[], None]:
        def act() -> None:
            alive = [process for process in processes() if process.alive]
            if alive:
                action(world.fault_random.choice(alive))

        return act

    def kill(process: Process) -> None:
        assert restart is not None
        process.kill()
        world.later(world.fault_random.uniform(0, 5), lambda: restart(process))

    def uniform(low: float, high: float) -> float:
        return world.fault_random.uniform(low, high)

    faults: list[Fault] = [
        ("pause a process", on_one(lambda process: process.pause(uniform(0.05, 12)))),
        ("monotonic clock jumps", on_one(lambda process: process.jump_monotonic(uniform(0.1, 20)))),
        ("wall clock jumps", on_one(lambda process: process.jump_wall(uniform(-3_600, 3_600)))),
    ]
    if restart is not None:
        faults.append(("kill a process", on_one(kill)))
    return faults
