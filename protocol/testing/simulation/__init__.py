"""One world that can be replayed: clients, threads, time, network and cluster under a seeded scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy_names import attach

if TYPE_CHECKING:
    from protocol.testing.simulation.faults import cluster_faults, heal, network_faults, process_faults
    from protocol.testing.simulation.network import Link, Network
    from protocol.testing.simulation.process import Process
    from protocol.testing.simulation.runner import Outcome, Worker, run_seeds, simulate
    from protocol.testing.simulation.scheduler import SimulationFailed
    from protocol.testing.simulation.simulation import Run, Simulation

_MODULES = {
    "Link": "protocol.testing.simulation.network",
    "Network": "protocol.testing.simulation.network",
    "Outcome": "protocol.testing.simulation.runner",
    "Process": "protocol.testing.simulation.process",
    "Run": "protocol.testing.simulation.simulation",
    "Simulation": "protocol.testing.simulation.simulation",
    "SimulationFailed": "protocol.testing.simulation.scheduler",
    "Worker": "protocol.testing.simulation.runner",
    "cluster_faults": "protocol.testing.simulation.faults",
    "heal": "protocol.testing.simulation.faults",
    "network_faults": "protocol.testing.simulation.faults",
    "process_faults": "protocol.testing.simulation.faults",
    "run_seeds": "protocol.testing.simulation.runner",
    "simulate": "protocol.testing.simulation.runner",
}

__all__ = [
    "Link",
    "Network",
    "Outcome",
    "Process",
    "Run",
    "Simulation",
    "SimulationFailed",
    "Worker",
    "cluster_faults",
    "heal",
    "network_faults",
    "process_faults",
    "run_seeds",
    "simulate",
]

__getattr__, __dir__ = attach(__name__, _MODULES)
