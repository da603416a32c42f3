"""One world that can be replayed: clients, threads, time, network and cluster under a seeded scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach

if TYPE_CHECKING:
    from protocol.testing.simulation.faults import (
        KAFKA_2_8,
        acl_faults,
        all_in_cluster,
        bootstrap_servers,
        cluster_faults,
        heal,
        log_faults,
        network_faults,
        process_faults,
        settle,
        topic_faults,
    )
    from protocol.testing.simulation.network import Link, Network
    from protocol.testing.simulation.process import Process
    from protocol.testing.simulation.runner import Outcome, Worker, run_seeds, simulate
    from protocol.testing.simulation.scheduler import SimulationFailed
    from protocol.testing.simulation.simulation import Run, Simulation

_MODULES = {
    "protocol.testing.simulation.faults": (
        "KAFKA_2_8 acl_faults all_in_cluster bootstrap_servers cluster_faults heal log_faults network_faults "
        "process_faults settle topic_faults"
    ),
    "protocol.testing.simulation.network": "Link Network",
    "protocol.testing.simulation.process": "Process",
    "protocol.testing.simulation.runner": "Outcome Worker run_seeds simulate",
    "protocol.testing.simulation.scheduler": "SimulationFailed",
    "protocol.testing.simulation.simulation": "Run Simulation",
}

__all__ = [
    "KAFKA_2_8",
    "Link",
    "Network",
    "Outcome",
    "Process",
    "Run",
    "Simulation",
    "SimulationFailed",
    "Worker",
    "acl_faults",
    "all_in_cluster",
    "bootstrap_servers",
    "cluster_faults",
    "heal",
    "log_faults",
    "network_faults",
    "process_faults",
    "run_seeds",
    "settle",
    "simulate",
    "topic_faults",
]

__getattr__, __dir__ = attach(__name__, _MODULES)
