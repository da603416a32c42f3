"""Marks tests by their fixtures, and groups those with real brokers or Spark for `pytest -n 3 --dist loadgroup`.

A group is one pytest-xdist worker's at a time, in the order of `Need`: the longest begin first, and the worker that
ends takes the next. So two workers own a Spark each, and the third the three brokers. A file has up to two parts:
tests with the fixture `spark`, and the others. A part stays together, in the group of its greatest need. Parts that
need Spark and one broker are divided among both Sparks. The three brokers, and the secured broker, are closed after
their last test.

A worker that crashes makes its run red, with the name of its test. Without help, pytest-xdist would not notice while a
forked child keeps the pipe to the controller open.
"""

from __future__ import annotations

import faulthandler
import os
import stat
import sys
from collections import defaultdict
from enum import IntEnum

import pytest

from spark_kafka_source.local_kafka import LocalKafka

# The brokers started by the fixtures `kafka` and `secured`, for the whole run.
THREE = pytest.StashKey[LocalKafka]()
SECURED = pytest.StashKey[LocalKafka]()


class Need(IntEnum):
    """Servers that the tests of a part of a file need, in the order of the run."""

    SPARK = 0
    SPARK_AND_THREE_BROKERS = 1
    THREE_BROKERS = 2
    SECURED_BROKER = 3
    ONE_BROKER = 4
    OWN_PROCESSES = 5  # a separate Kafka or Spark
    NOTHING = 6


_NEED = pytest.StashKey[Need]()
_MARKING = {"kafka": {"kafka", "kafka1", "other_kafka", "secured", "topic", "topic1"}, "spark": {"spark"}}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist adds the groups to the ids
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark and group the tests; keep those of a part of a file together, in their order."""
    parts: dict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        for mark, fixtures in _MARKING.items():
            if fixtures.intersection(_fixtures(item)):
                item.add_marker(mark)
        parts[item.nodeid.partition("::")[0], "spark" in _fixtures(item)].append(item)
    needs = {part: _need(tests) for part, tests in parts.items()}
    for part in sorted(part for part, need in needs.items() if need == Need.SPARK)[1::2]:
        needs[part] = Need.SPARK_AND_THREE_BROKERS
    for part, tests in parts.items():
        for item in tests:
            item.stash[_NEED] = needs[part]
            if needs[part] != Need.NOTHING:
                item.add_marker(pytest.mark.xdist_group(needs[part].name.lower()))
    items[:] = [item for part in sorted(parts, key=needs.__getitem__) for item in parts[part]]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close brokers that no later test of this process needs. Idle, three take a tenth of a core."""
    if nextitem is None or item.stash[_NEED] == nextitem.stash[_NEED]:
        return
    for key, need in ((THREE, Need.THREE_BROKERS), (SECURED, Need.SECURED_BROKER)):
        if item.stash[_NEED] == need and (running := item.config.stash.get(key, None)):
            running.close()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report the id by which pytest runs the test alone."""
    name, _, group = report.nodeid.rpartition("@")
    if group.upper() in Need.__members__:
        report.nodeid = name


def pytest_configure(config: pytest.Config) -> None:
    """Close the pipes to the controller in forked children: it waits until all ends are closed."""
    if hasattr(config, "workerinput"):
        standard_streams = {_identity(number) for number in range(3)}
        pipes = [number for number in _open_files() if _is_pipe(number) and _identity(number) not in standard_streams]
        os.register_at_fork(after_in_child=lambda: [os.close(number) for number in pipes])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Print the stacks of a crash at the interpreter's end, too: pytest has disabled its fault handler."""
    faulthandler.enable(sys.__stderr__)


def _open_files() -> list[int]:
    return [number for number in map(int, os.listdir("/dev/fd")) if number > 2]


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # of the listing itself
        return False


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def _need(tests: list[pytest.Item]) -> Need:
    fixtures = {name for test in tests for name in _fixtures(test)}
    if "spark" in fixtures:
        return Need.SPARK_AND_THREE_BROKERS if fixtures & {"kafka", "topic"} else Need.SPARK
    if "secured" in fixtures:
        return Need.SECURED_BROKER
    if fixtures & {"kafka", "topic"}:
        return Need.THREE_BROKERS
    if any(mark.kwargs.get("brokers") == 3 for test in tests for mark in test.iter_markers("kafka")):
        return Need.THREE_BROKERS
    if fixtures & {"kafka1", "topic1"}:
        return Need.ONE_BROKER
    marks = {mark.name for test in tests for mark in test.iter_markers()}
    return Need.OWN_PROCESSES if marks & {"kafka", "spark"} else Need.NOTHING
