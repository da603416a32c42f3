"""Members of real and modelled groups, in both group protocols."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol import Client
from protocol.config import parse_consumer
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.testing import ManualClock
from protocol.testing.fake_kafka.cluster import Cluster
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION

NewMember = Callable[..., "Owner"]

PROTOCOLS = ("classic", "consumer")


class Owner:
    """Owner of a member: it handles pending rebalances and records revocations and identities."""

    def __init__(self, client: Client, group: str, subscription: TopicSubscription, **properties: Any) -> None:
        self.client = client
        self.group = group
        self.identities: list[GroupMember] = []
        self.revoked: list[Revocation] = []
        config = parse_consumer({"group.id": group, **properties})
        self.on_member: Callable[[GroupMember], None] = self.identities.append
        self.membership = Membership(client, config, subscription, lambda member: self.on_member(member))

    def poll_rebalance(self, timeout_ms: float = 0) -> Assignment:
        return self.membership.poll_rebalance(self.client.deadline(timeout_ms), self.revoked.append)

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.membership.owned)


def rebalance(*owners: Owner, until: Callable[[], bool], timeout_ms: float = 40_000) -> None:
    """Let all owners handle pending rebalances until the condition holds."""
    deadline = owners[0].client.deadline(timeout_ms)
    while True:
        for owner in owners:
            if owner.membership.rebalance_pending or not owner.membership.owned:
                owner.poll_rebalance(50)
        if until():
            return
        assert not deadline.passed, [(owner.membership.member, owner.numbers) for owner in owners]
        owners[0].client.clock.sleep_s(0.02)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Return each group protocol; with real brokers, those that they support."""
    real = {"kafka", "kafka1"} & set(request.fixturenames)
    if request.param == "consumer" and real and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    return str(request.param)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    """Yield a list of owners that are closed after the test."""
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.membership.close(timeout_ms=1_000)


@pytest.fixture
def new_member(owners: list[Owner], protocol: str, group: str) -> NewMember:
    """Return `new_member(client, "orders", "paid", **properties)`, which creates a member that has not joined yet.

    Classic members send frequent heartbeats; in the consumer protocol the coordinator sets the interval.
    """

    def create(client: Client, *topics: str, subscription: TopicSubscription | None = None, **inputs: Any) -> Owner:
        properties = {name.replace("_", "."): value for name, value in inputs.items()}
        properties = {"group.protocol": protocol, **properties}
        if properties["group.protocol"] == "classic":
            properties = {"heartbeat.interval.ms": "100", **properties}
        owners.append(Owner(client, group, subscription or TopicSubscription(frozenset(topics)), **properties))
        return owners[-1]

    return create


@pytest.fixture
def cluster() -> Cluster:
    """Return a model of one broker, without sockets; topic `orders` has four partitions."""
    cluster = Cluster(1, clock=ManualClock())
    cluster.create_topic("orders", 4)
    return cluster
