"""Run scenarios of this folder: `python -m tests.simulation idempotent_producer --seed 7`."""

import sys

from protocol.testing.simulation.command import main
from tests.simulation import LEAST_EVENTS, SCENARIOS, broken

if "--broken" in sys.argv:
    raise SystemExit(broken.main())
raise SystemExit(
    main(package="tests.simulation", names=SCENARIOS, program="tests.simulation", least_events=LEAST_EVENTS)
)
