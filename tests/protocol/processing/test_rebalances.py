"""Partitions that come and go: running handlers are waited for, and late results are dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from protocol import Client, KafkaConsumer, RetryPolicy
from protocol.processing.worker_pool import WorkerPool
from protocol.testing import FakeKafka
from tests.protocol.consumer.conftest import EAGER, PROTOCOLS
from tests.protocol.consumer.members import Listener, Polling
from tests.protocol.processing.conftest import EMPTY, MANUAL_COMMIT, Committed, Handler, Start, StartObserved, Write
from tests.support.wait_until import comes_true, wait_until

NUMBERS = [b"%d" % number for number in range(50)]
KEYS_OF_LANES = (b"a", b"b")


Join = Callable[..., Polling]


@pytest.fixture
def join(client: Client) -> Iterator[Join]:
    """Yield `join(**properties)`, for another member of the group."""
    with ExitStack() as opened:

        def create(**properties: object) -> Polling:
            return opened.enter_context(closing(Polling(KafkaConsumer(client, MANUAL_COMMIT | properties), "orders")))

        yield create


@pytest.fixture
def release(write: Write, handler: Handler) -> threading.Event:
    """Write 50 records to each partition, with the keys of two lanes; return what releases the handlers of both "3"."""
    for partition in (0, 1):
        write(NUMBERS, keys=KEYS_OF_LANES, partition=partition)
    return handler.block(b"3")


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that grows with each wait for the handlers of released partitions."""
    waits, wait = list[object](), WorkerPool.wait
    monkeypatch.setattr(WorkerPool, "wait", lambda *inputs: (waits.append(inputs), wait(*inputs))[1])
    return waits


@PROTOCOLS
def test_revocation_waits_for_running_handlers_and_commits(
    release: threading.Event,
    start: Start,
    handler: Handler,
    join: Join,
    committed: Committed,
    drains: list[object],
    protocol: dict[str, Any],
) -> None:
    running = start(handler, order="partition", **protocol, **{"auto.commit.interval.ms": 60_000})
    wait_until(lambda: handler.at_blocks == 2)
    second = join(**protocol)
    wait_until(lambda: drains)
    assert not second.first_offsets
    release.set()
    wait_until(lambda: second.first_offsets)
    (revoked,) = second.first_offsets
    own = [message.offset for message in handler.begun if message.partition == revoked]
    assert second.first_offsets == {revoked: own[-1] + 1}, "nothing is handled by both, and nothing is left out"
    wait_until(lambda: len(handler.begun) == own[-1] + 1 + 50)
    assert [message.offset for message in handler.begun if message.partition != revoked] == list(range(50))
    running.close()
    assert committed()[1 - revoked] == 50


@pytest.mark.parametrize("fails", [b"3", b"5"])
def test_records_behind_a_failed_one_are_left_to_the_next_member(
    release: threading.Event, start: Start, handler: Handler, join: Join, drains: list[object], fails: bytes
) -> None:
    handler.failing[fails] = ValueError("as if")
    running = start(handler, threads=4, retry=RetryPolicy(retries=1_000), **EAGER)
    wait_until(lambda: handler.at_blocks == 2 and len(handler.values) >= 50)
    second = join(**EAGER)
    wait_until(lambda: drains)
    release.set()
    wait_until(lambda: second.first_offsets)
    assert set(second.first_offsets.values()) == {int(fails)}
    running.close()


@PROTOCOLS
def test_results_after_the_limit_are_dropped(
    release: threading.Event,
    start: Start,
    handler: Handler,
    join: Join,
    committed: Committed,
    protocol: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A partition that is assigned again waits for its late handler, so that its records stay in order."""
    start(handler, order="partition", drain_timeout_ms=200, **protocol)
    wait_until(lambda: handler.at_blocks == 2)
    second = join(**protocol)
    wait_until(lambda: second.first_offsets)
    (revoked,) = second.first_offsets
    assert second.first_offsets == {revoked: 3}
    assert "handlers still run when the partitions are released; their results are dropped" in caplog.text
    assert not comes_true(lambda: len(handler.begun) > 8, 0.5), "no record is handled beside the late ones"
    release.set()
    wait_until(lambda: committed() == {revoked: 3, 1 - revoked: 50}, committed, every_s=0.02)
    retained = [message.offset for message in handler.begun if message.partition != revoked]
    # The late record may be handled again, in order.
    assert retained in ([*range(50)], [*range(4), *range(3, 50)])


def test_lost_partitions_are_neither_waited_for_nor_committed(
    fake: FakeKafka,
    write: Write,
    start_observed: StartObserved,
    handler: Handler,
    committed: Committed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(NUMBERS)
    release = handler.block(b"3")
    listener = Listener()
    _, consumer = start_observed(handler, order="partition", listener=listener, **EAGER)
    wait_until(lambda: handler.at_blocks == 1 and committed() == {0: 3} | EMPTY, committed, every_s=0.02)
    wait_until(lambda: not consumer.commits_in_flight)
    fake.refuse("Heartbeat", "ILLEGAL_GENERATION")
    wait_until(lambda: len(listener.events) == 3, lambda: listener.events)
    assert listener.events == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
    assert len(handler.begun) == 4
    assert "offsets were not committed" not in caplog.text
    release.set()
    wait_until(lambda: committed() == {0: 50} | EMPTY, committed, every_s=0.02)
    assert [message.offset for message in handler.begun] == [*range(4), *range(3, 50)]
