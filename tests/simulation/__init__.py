"""Scenarios in a simulated world, each with a judge that knows nothing of the client."""

from pathlib import Path

_NO_SCENARIOS = ("same_seed", "conftest")

SCENARIOS = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if not path.stem.startswith(("_", "test_"))
    and path.stem not in _NO_SCENARIOS
    and "def scenario(" in path.read_text()
)
"""Names of the scenarios in this folder."""

LEAST_EVENTS = {
    "assigned_consumer": {"faults": 50, "ranges": 5, "tables": 5},
    "changing_cluster": {"faults": 30, "records": 200, "create": 10, "delete": 5},
    "exactly_once_copy": {"faults": 60, "kills": 3, "records": 200, "committed": 20},
    "exactly_once_sink": {"faults": 50, "kills": 5, "drivers": 5, "batches": 20},
    "group_handlers": {"faults": 20, "records": 200, "members": 10},
    "group_members": {"faults": 20, "records": 500, "members": 15},
    "idempotent_producer": {"faults": 40, "records": 500},
    "interrupted_notebook": {"interrupts": 5},
    "spark_query": {"faults": 100, "batches": 10, "drivers": 15, "kills": 1},
    "transactions": {"faults": 40, "committed": 50, "aborted": 10},
}
"""By scenario and event: the least count in five runs. A run in which nothing happens proves nothing."""
