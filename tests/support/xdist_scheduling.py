"""Order and distribution of test files over three pytest-xdist workers, so that few brokers and Sparks start.

Files are sorted by their needs: three brokers; a separate Kafka and Spark; neither; one broker; one broker and
Spark; a secured broker. `gw0` starts at the front, `gw1` at the end, `gw2` in the middle, and continues towards the
end. The three brokers, and the secured broker, are closed after the last file that needs them.

`--dist loadgroup` is slower, measured in turns on 30 files of all kinds: with groups for three brokers, Spark and the
secured broker, and one per other file, by 35 % (processor time 29 %), since each worker starts its own broker and the
big groups start together; with one group for the broker and Spark by 5 % (17 %), and that group ends last. It also
appends the group to each test's id, which pytest then cannot run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from spark_kafka_source.local_kafka import LocalKafka

# The brokers started by the fixtures `kafka` and `secured`, for the whole run.
THREE = pytest.StashKey[LocalKafka]()
SECURED = pytest.StashKey[LocalKafka]()

_PLACE = pytest.StashKey[int]()
_THREE_BROKERS = {"kafka", "topic"}
_ONE_BROKER = {"kafka1", "topic1"}
_LAST_WITH_THREE, _SECURED = 1, 6
# The first file after those that need three brokers.
_MIDDLE = "tests/spark/demo/test_demo.py"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, in their order."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    for tests in files.values():
        place = _place(tests)
        for item in tests:
            item.stash[_PLACE] = place
    in_order = sorted(files.values(), key=lambda tests: tests[0].stash[_PLACE])
    items[:] = [item for tests in in_order for item in tests]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Idle, three brokers take a sixth of a core. With another number of workers the order differs."""
    if nextitem is None or os.environ.get("PYTEST_XDIST_WORKER_COUNT", "3") != "3":
        return
    place = nextitem.stash[_PLACE]
    for key, over in ((THREE, place > _LAST_WITH_THREE), (SECURED, place != _SECURED)):
        if over and (running := item.config.stash.get(key, None)):
            running.close()


def _place(tests: list[pytest.Item]) -> int:
    needs = {name for test in tests for name in getattr(test, "fixturenames", ())}
    if any(mark.kwargs.get("brokers") == 3 for test in tests for mark in test.iter_markers("kafka")):
        needs.add("kafka")
    if "secured" in needs:
        return _SECURED
    if needs & _THREE_BROKERS:
        return _LAST_WITH_THREE if needs & _ONE_BROKER else 0
    if needs & _ONE_BROKER or "spark" in needs:
        return 5 if "spark" in needs else 4
    marks = {mark.name for test in tests for mark in test.iter_markers()}
    return 2 if marks & {"kafka", "spark"} else 3


class _ThreeWorkerScheduling(LoadFileScheduling):  # type: ignore[misc]
    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._places: dict[str, int] = {}

    def _assign_work_unit(self, node: Any) -> None:
        files = list(self.workqueue)
        self._places = self._places or {file: place for place, file in enumerate(files)}
        if node.gateway.id == "gw1":
            taken = files[-1]
        elif node.gateway.id == "gw2":
            middle = self._places.get(_MIDDLE, 0)
            taken = next((file for file in files if self._places[file] >= middle), files[0])
        else:
            taken = files[0]
        self.workqueue.move_to_end(taken, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ThreeWorkerScheduling(config, log)
