"""Usual faults of a cluster, a network and processes, as lists for `Simulation.start_faults`.

Each fault draws its numbers from `Simulation.fault_random`, so that a run without it draws the same ones elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from protocol.testing.simulation.process import Process
from protocol.testing.simulation.simulation import Fault, Simulation

if TYPE_CHECKING:
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
    "AddPartitionsToTxn": ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "ConsumerGroupHeartbeat": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "EndTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "UNKNOWN_TOPIC_OR_PARTITION"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"),
    "Heartbeat": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "ListOffsets": ("LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE"),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "UNSTABLE_OFFSET_COMMIT"),
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
    "SyncGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    "TxnOffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
}
"""Retriable errors of the cluster by kind of request."""


def cluster_faults(world: Simulation, kafka: FakeKafka, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Return faults of brokers, leaders, coordinators and replies; at most one broker is away at a time.

    Parameters
    ----------
    world : Simulation
    kafka : FakeKafka
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
        brokers = kafka.brokers.values()
        if all(broker.running and not broker.silent and not broker.isolated for broker in brokers):
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
        ("silence a broker", lambda: away(kafka.silence, lambda broker_id: kafka.silence(broker_id, False), (0.5, 15))),
        ("fence a broker", lambda: away(kafka.fence, lambda broker_id: kafka.silence(broker_id, False), (0.5, 4))),
        ("isolate a broker", lambda: away(kafka.isolate, lambda broker_id: kafka.isolate(broker_id, False), (0.5, 4))),
    ]


def _if_away(kafka: FakeKafka, broker_id: int, come_back: Callable[[int], Any]) -> None:
    broker = kafka.brokers[broker_id]
    if come_back != kafka.start or not broker.running:
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


def network_faults(
    world: Simulation, kafka: FakeKafka, clients: Callable[[], list[Process]] | None = None
) -> list[Fault]:
    """Return faults of connections between clients and brokers.

    Parameters
    ----------
    world : Simulation
    kafka : FakeKafka
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
        at = port()
        for_a_while("deaf", client(), at)
        world.later(12.5, lambda: network.cut(port=at))

    def redirect() -> None:
        at, to = port(), port()
        network.redirects[at] = to
        network.cut(port=at)

        def end() -> None:  # clients do not notice that a connection leads to another broker
            network.redirects.pop(at, None)
            network.cut(port=at)

        world.later(world.fault_random.uniform(0.5, 5), end)

    def slow() -> None:
        link = network.link(client(), port())
        before = link.latency_s
        link.latency_s = (0.05, world.fault_random.uniform(0.1, 1.5))

        def end() -> None:
            link.latency_s = before

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
    world : Simulation
    processes : callable
        Returns the processes to choose from, such as `lambda: world.alive("member")`.
    restart : callable, optional
        Called with a process that was killed up to 5 s ago, to start another one.
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
