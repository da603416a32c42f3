"""Run scenarios of this folder: `python -m tests.simulation idempotent_producer --seed 7`."""

from protocol.testing.simulation.command import main

raise SystemExit(main(prefix="tests.simulation", program="tests.simulation"))
