"""Run scenarios: `python -m protocol.testing.simulation my.module:scenario --seed 7`."""

from protocol.testing.simulation.command import main

raise SystemExit(main())
