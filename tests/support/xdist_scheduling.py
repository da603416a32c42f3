"""Order and distribution of test files over four pytest-xdist workers, so that few brokers and Sparks start.

Files are sorted by their needs (`Place`). Two workers have a Spark: `gw0` begins with the files for three brokers and
continues with those for one broker and Spark, which `gw1` takes from the end. The other two have none: `gw2` takes the
files from `SEPARATE` to `ONE_BROKER` in this order, and `gw3` in the reverse order. The three brokers, and the secured
broker, are closed after the last file that needs them.

`--dist loadgroup` is slower, measured in turns on 30 files of all kinds: with groups for three brokers, Spark and the
secured broker, and one per other file, by 35 % (processor time 29 %), since each worker starts its own broker and the
big groups start together; with one group for the broker and Spark by 5 % (17 %), and that group ends last. It also
appends the group to each test's id, which pytest then cannot run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from enum import IntEnum
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from spark_kafka_source.local_kafka import LocalKafka

# The brokers started by the fixtures `kafka` and `secured`, for the whole run.
THREE = pytest.StashKey[LocalKafka]()
SECURED = pytest.StashKey[LocalKafka]()


class Place(IntEnum):
    """The needs of a file's tests, in the order of the run."""

    THREE_BROKERS = 0
    THREE_AND_ONE = 1
    SEPARATE = 2  # a separate Kafka or Spark
    NEITHER = 3
    ONE_BROKER = 4
    SPARK = 5
    SECURED = 6


_PLACE = pytest.StashKey[Place]()
_THREE_BROKERS = {"kafka", "topic"}
_ONE_BROKER = {"kafka1", "topic1"}
# pytest-xdist's controller learns only the ids of tests, so `gw0` puts the places of files into pytest's cache.
_CACHED = "xdist_scheduling/places"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, in their order."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[_file(item.nodeid)].append(item)
    places = {file: _place(tests) for file, tests in files.items()}
    for file, tests in files.items():
        for item in tests:
            item.stash[_PLACE] = places[file]
    items[:] = [item for file in sorted(files, key=places.__getitem__) for item in files[file]]
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and config.cache is not None:
        config.cache.set(_CACHED, places)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close brokers that no later test of this process needs. Idle, three take a tenth of a core."""
    if nextitem is None:
        return
    place = nextitem.stash[_PLACE]
    for key, over in ((THREE, place > Place.THREE_AND_ONE), (SECURED, place != Place.SECURED)):
        if over and (running := item.config.stash.get(key, None)):
            running.close()


def _file(test_id: str) -> str:
    return test_id.partition("::")[0]


def _place(tests: list[pytest.Item]) -> Place:
    needs = {name for test in tests for name in getattr(test, "fixturenames", ())}
    if any(mark.kwargs.get("brokers") == 3 for test in tests for mark in test.iter_markers("kafka")):
        needs.add("kafka")
    if "secured" in needs:
        return Place.SECURED
    if needs & _THREE_BROKERS:
        return Place.THREE_AND_ONE if needs & _ONE_BROKER else Place.THREE_BROKERS
    if "spark" in needs:
        return Place.SPARK
    if needs & _ONE_BROKER:
        return Place.ONE_BROKER
    marks = {mark.name for test in tests for mark in test.iter_markers()}
    return Place.SEPARATE if marks & {"kafka", "spark"} else Place.NEITHER


class _FourWorkerScheduling(LoadFileScheduling):  # type: ignore[misc]
    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._places: dict[str, int] = {}

    def _assign_work_unit(self, node: Any) -> None:
        file = self._next_file(node.gateway.id)
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _next_file(self, worker: str) -> str | None:
        """Return the next file for a worker, or None for a worker without Spark if all that remain need one."""
        files = list(self.workqueue)
        if not self._places:  # only now are all tests collected
            cached = self.config.cache.get(_CACHED, {}) if self.config.cache else {}
            self._places = {file: cached.get(file, Place.NEITHER) for file in files}
        without_spark = [file for file in files if Place.SEPARATE <= self._places[file] <= Place.ONE_BROKER]
        if worker == "gw0":
            return next((file for file in files if file not in without_spark), files[0])
        if worker == "gw1":
            return files[-1]
        return next(iter(without_spark if worker == "gw2" else reversed(without_spark)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _FourWorkerScheduling(config, log)
