"""Which of two test processes runs what, so that brokers start once: `gw0` begins at one end, `gw1` at the other.

In front are the files for three brokers, at the back the others that need a Kafka or a Spark, and between them what
needs neither. The two processes meet somewhere there, where files are short and anybody's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_THREE_BROKERS = {"kafka", "topic"}
_ONE_BROKER = {"kafka1", "topic1"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay together, in their order."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    items[:] = [item for tests in sorted(files.values(), key=_place) for item in tests]


def _place(tests: list[pytest.Item]) -> int:
    needs = {name for test in tests for name in getattr(test, "fixturenames", ())}
    if any(mark.kwargs.get("brokers") == 3 for test in tests for mark in test.iter_markers("kafka")):
        needs.add("kafka")
    if needs & _THREE_BROKERS:
        return 1 if needs & _ONE_BROKER else 0
    marks = {mark.name for test in tests for mark in test.iter_markers()}
    return 3 if marks & {"kafka", "spark"} else 2


class _TwoEnds(LoadFileScheduling):  # type: ignore[misc]
    def _assign_work_unit(self, node: Any) -> None:
        if node.gateway.id != "gw0":
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _TwoEnds(config, log)
