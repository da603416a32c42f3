"""Tests wait for conditions (`tests/support/wait_until.py`), or in simulated time; never for a time of the machine."""

from __future__ import annotations

import re
from collections import Counter

from tests.conftest import ROOT

# Calls by file, each for a reason of the operating system or of a real server. The list may only shrink.
SLEEPS = {
    "protocol/net/test_hostile_tls.py": "a server sends its bytes slowly through a real socket",
    "protocol/sasl/test_tokens.py": "a server sends its bytes slowly through a real socket",
    "protocol/sasl/test_reauthentication.py": "a real broker rejects a reauthentication within one second",
    "spark/test_sessions.py": "rows are written while sessions of a real broker expire",
    "support/kafka_proxy.py": "a frame between a client and a real broker is delayed",
    "support/wait_until.py": "the interval between two checks of a condition",
    "versions/jobs.py": "runs where only the wheel is installed, without `wait_until`",
}
MOST_FILES = 15
# Folders with tests that still sleep, and the number of calls: only a smaller number may replace it.
TO_MEND = {
    "protocol/fetch/": 2,
    "protocol/consumer/": 1,
    "protocol/processing/": 2,
    "protocol/transaction/": 2,
}
SLEEP = re.compile(r"\btime\.sleep\(|\bfrom time import\b.*\bsleep\b")


def test_no_test_sleeps_without_a_reason_of_the_operating_system() -> None:
    calls: Counter[str] = Counter()
    for file in (ROOT / "tests").rglob("*.py"):
        name = str(file.relative_to(ROOT / "tests"))
        # Scenarios run in simulated time.
        if not name.startswith("simulation/") and name != "test_sleeps.py":
            folder = next((folder for folder in TO_MEND if name.startswith(folder)), name)
            calls[folder] += len(SLEEP.findall(file.read_text()))
    assert len(SLEEPS) <= MOST_FILES
    allowed = Counter({**TO_MEND, **dict.fromkeys(SLEEPS, 1)})
    assert calls - allowed == Counter(), "wait for a condition with `wait_until`"
    assert [name for name in SLEEPS if not calls[name]] == [], "the list only shrinks"
