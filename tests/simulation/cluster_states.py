"""The states of a cluster that its brokers have told clients, and the times of them.

A broker that the controller does not reach replies with an older state than others.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from math import inf

from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.controller import NO_LEADER, Image, TopicImage
from protocol.testing.simulation import Simulation

PartitionRow = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Leader, its epoch, replicas and in-sync replicas."""


@dataclass
class State:
    """A state that one broker tells clients until a time.

    Attributes
    ----------
    image : Image
    addresses : dict of int to (str, int)
        Host and port by node id.
    until_s : float
        Time of the next state, infinite for the present one.
    """

    image: Image
    addresses: dict[int, tuple[str, int]]
    until_s: float = inf

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic ids by name, as Kafka's tools print them."""
        return {
            name: base64.urlsafe_b64encode(topic.topic_id).rstrip(b"=").decode()
            for name, topic in self.image.topics.items()
        }

    @property
    def brokers(self) -> tuple[int, dict[int, tuple[str, int]]]:
        """The controller, and the addresses of brokers in the cluster."""
        brokers = self.image.brokers
        return min(brokers, default=-1), {key: self.addresses[key] for key in brokers if key in self.addresses}

    def partitions(self, name: str) -> list[PartitionRow]:
        """Return the partitions of a topic, none if it does not exist."""
        topic = self.image.topics.get(name)
        return [] if topic is None else self._rows(topic)

    def retention_ms(self, name: str, default: str) -> str | None:
        """Return the retention time of a topic, None if it does not exist."""
        topic = self.image.topics.get(name)
        return None if topic is None else topic.config.get("retention.ms", default)

    def _rows(self, topic: TopicImage) -> list[PartitionRow]:
        brokers = self.image.brokers
        return [
            (
                partition.leader if partition.leader in brokers else NO_LEADER,
                partition.leader_epoch,
                partition.replicas,
                partition.isr,
            )
            for partition in topic.partitions
        ]


class ClusterStates:
    """Notes each state of each broker that replies to clients."""

    def __init__(self, world: Simulation, kafka: FakeKafka) -> None:
        self._world = world
        self._kafka = kafka
        self._states: list[State] = []
        self._present: dict[int, State] = {}
        self._advance = kafka.advance
        kafka.advance = self._note  # type: ignore[method-assign]
        self._note()

    def since(self, from_s: float) -> list[State]:
        """Return the states that a broker has had since a time."""
        return [state for state in self._states if state.until_s >= from_s]

    def _note(self) -> None:
        """Let the cluster advance, as it does before each request and after each change, and note new states."""
        self._advance()
        kafka = self._kafka
        replying = {key: broker for key, broker in kafka.brokers.items() if broker.running and not broker.silent}
        for broker_id, state in list(self._present.items()):
            broker = replying.get(broker_id)
            if broker is None or state.image is not broker.image or state.addresses != kafka.addresses:
                self._present.pop(broker_id).until_s = self._world.now_s
        for broker_id in replying.keys() - self._present.keys():
            self._present[broker_id] = State(replying[broker_id].image, dict(kafka.addresses))
            self._states.append(self._present[broker_id])
