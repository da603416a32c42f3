"""An exactly-once query whose processes die at random requests and lose random replies; rows differ per attempt.

The tests make Spark's calls on a real broker, so that a death needs no restart of Spark. A `read_committed` reader must
see each batch once, complete, and as one attempt wrote it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from protocol.cluster.client import Client
from protocol.errors import KafkaError
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.messages.m28_txn_offset_commit import TXN_OFFSET_COMMIT
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.process_state import PROCESS
from tests.conftest import TopicFactory
from tests.support import read_committed
from tests.support.exactly_once_query import Query
from tests.support.kafka_proxy import Exchange, Fate, KafkaProxy
from tests.support.soak import scaled, variants
from tests.support.transaction_version import transactions_before_kip_890

pytestmark = pytest.mark.soak

# More in `make soak`.
BATCHES = 10 * scaled("KILLS", 1, 20)
TASKS = 3
_DIES = 0.02
_LOSES = 0.03
_WITH_REPLIES_TO_LOSE = (PRODUCE, INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT)


class Died(BaseException):
    """Simulates SIGKILL: from then on the process sends no request."""


@contextmanager
def mortal(rng: random.Random) -> Iterator[None]:
    """Let the process die at a random request in the block, or survive."""
    send, dead = Client.send, False

    def send_or_die(self: Client, *arguments: Any, **options: Any) -> Any:
        nonlocal dead
        if dead or rng.random() < _DIES:
            dead = True
            raise Died
        return send(self, *arguments, **options)

    with patch.object(Client, "send", send_or_die):
        yield


# A death may come in a thread of the producer's, and its exception then ends this thread.
@pytest.mark.filterwarnings(r"ignore:(?s).*\bDied\b:pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(60 + 20 * BATCHES)
@variants("version", [2, 1], 1)  # the other tests of killed processes run with version 2
def test_random_process_deaths_leave_every_batch_complete_and_once(
    kafka1: LocalKafka, topic1: TopicFactory, version: int
) -> None:
    name, rng = topic1(), random.Random(version)
    deaths = 0

    def lose(_: Exchange) -> Fate:
        return Fate.CUT if rng.random() < _LOSES else Fate.PASS

    with KafkaProxy.of(kafka1) as proxy:
        if version == 1:
            with transactions_before_kip_890(kafka1):
                deaths = run(Query(proxy.servers), name, rng, proxy, lose)
        else:
            deaths = run(Query(proxy.servers), name, rng, proxy, lose)
    values_by_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for value in read_committed.by_librdkafka(kafka1.bootstrap_servers, name)[0]:
        batch, task, attempt = map(int, value.split(b"."))
        values_by_key[batch].append((task, attempt))
    assert deaths > 0
    assert sorted(values_by_key) == list(range(BATCHES))
    for rows in values_by_key.values():
        assert sorted(task for task, _ in rows) == list(range(TASKS))
        assert len({attempt for _, attempt in rows}) == 1, "rows of two attempts are mixed"


def run(query: Query, name: str, rng: random.Random, proxy: KafkaProxy, lose: Any) -> int:
    """Run until all batches are complete; return how many starts died."""
    for api in _WITH_REPLIES_TO_LOSE:
        proxy.replies[api] = lose
    start = batch = 0
    while batch < BATCHES:
        rows = [(name, f"{batch}.{task}.{start}") for task in range(TASKS)]
        try:
            with mortal(rng):
                messages = [query.task(f"start-{start}", batch, task, rows[task]) for task in range(TASKS)]
                query.commit(*messages)
            batch += 1
        except (Died, KafkaError):
            start += 1  # restart the query, which replays the batch
            PROCESS.reset()
            query = Query(proxy.servers, query.query_id)
            continue
        if rng.random() < 0.1:  # Spark has not written its commit log
            start, batch = start + 1, batch - 1
    assert query.left_open() == []
    return start
