"""Run scenarios of this folder: `python -m tests.simulation idempotent_producer --seed 7`."""

from protocol.testing.simulation.command import main
from tests.simulation import SCENARIOS

raise SystemExit(main(package="tests.simulation", names=SCENARIOS, program="tests.simulation"))
