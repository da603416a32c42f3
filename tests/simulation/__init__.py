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
