"""Connections that have reached another broker than the one they were opened for."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import transaction_coordinator


def misdirect_coordinators(client: Client, transactional_ids: Iterable[str]) -> None:
    """Replace connections to coordinators, as if the coordinator's name had resolved to another broker.

    Brokers before Kafka 4.4 do not refuse such a connection.
    """
    deadline = client.deadline()
    coordinators = {client.coordinator(transaction_coordinator(name), deadline) for name in transactional_ids}
    brokers = client.brokers()
    connections = client.pool.connections
    for coordinator in coordinators:
        opened = client.connection(coordinator, COORDINATOR, deadline)
        (key,) = [key for key, connection in connections.items() if connection is opened]
        another = next(broker for broker in brokers.values() if broker != coordinator)
        connections[key] = client.connection(another, f"instead of {coordinator}", deadline)
