"""The ledger of an exactly-once query: its form as committed offsets of a group, and a search of its protocol."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Corrupt, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.producer.idempotence import ProducerIdentity
from spark_kafka_source.sink.exactly_once.ledger import Ledger, from_offsets, to_offsets
from tests.sink.ledger_search.configurations import CONTROLS, LARGE, SMALL, Configuration
from tests.sink.ledger_search.search import search
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

RNG = random.Random(1)
IDS = {task: ProducerIdentity(RNG.getrandbits(60), RNG.getrandbits(14)) for task in range(900)}
MANY = Ledger("t").decided(7, 900, IDS)
IDENTITIES = st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))


@given(
    st.lists(st.uuids().map(str), max_size=20),
    st.integers(-1, 2**62),
    st.dictionaries(st.integers(0, 2**31 - 1), IDENTITIES, max_size=500),
)
def test_ledger_survives_round_trip_through_group_offsets(
    starts: list[str], batch_id: int, transactions: dict[int, ProducerIdentity]
) -> None:
    ledger = Ledger("orders")
    for start in starts:
        ledger = ledger.started(start)
    ledger = ledger.decided(batch_id, len(transactions), transactions)
    offsets = to_offsets(ledger, partition_count=20)
    assert from_offsets(offsets) == ledger
    assert {entry.offset for entry in offsets.values()} == {batch_id + 1}
    assert all(len(entry.metadata.encode()) <= 4_096 for entry in offsets.values())


def test_short_ledger_after_long_one_ignores_left_over_partitions() -> None:
    offsets = to_offsets(MANY, 20)
    assert len(offsets) > 2
    short = Ledger("t").decided(8, 1, {0: ProducerIdentity(5, 0)})
    assert from_offsets({**offsets, **to_offsets(short, 20)}) == short


def test_ledger_of_500_tasks_fits_into_one_partition() -> None:
    """Brokers allocate producer ids in blocks, so that the ids of one query are close together."""
    ledger = Ledger("t", ("a" * 36,) * 20).decided(7, 500, {n: ProducerIdentity(4_000 + n, 12) for n in range(500)})
    assert len(to_offsets(ledger, 1)) == 1


def test_ledger_too_large_for_partitions_of_topic_is_refused_with_remedy() -> None:
    with pytest.raises(UsageError, match=r"900 tasks needs \d partitions of topic t .* coalesce"):
        to_offsets(MANY, 1)


def test_start_is_superseded_unless_newest() -> None:
    ledger = Ledger("t").started("a").started("b")
    assert [ledger.is_fenced(start) for start in ("a", "b", "c")] == [True, False, False]
    assert ledger.start_id == "b"


def test_group_without_offsets_has_no_ledger() -> None:
    assert from_offsets({}) is None


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "1/1 {}", "1/2 {", "x", "1/1 []", "1/1 null", "1/1 5", '1/1 "text"', "/-1", "-1/-1 {}"),
        '1/1 {"starts":[],"tasks":1,"transactions":"AAAA"}',
        '1/1 {"starts":[],"tasks":1,"transactions":5}',
        '1/1 {"starts":5,"tasks":1,"transactions":"eJwDAAAAAAE="}',
        '1/1 {"starts":[],"tasks":"1","transactions":"eJwDAAAAAAE="}',
        '1/1 {"starts":"text","tasks":1,"transactions":"eJwDAAAAAAE="}',
        '1/1 {"starts":[5],"tasks":1,"transactions":"eJwDAAAAAAE="}',
    ],
)
def test_offsets_of_another_application_are_refused_as_ledger(metadata: str) -> None:
    with pytest.raises(Corrupt, match="another application use the group"):
        from_offsets({("t", 0): CommittedOffset(5, metadata=metadata)})


@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("name", LARGE if SOAK else SMALL)
def test_batch_is_visible_once_and_whole_in_every_order_of_events(name: str) -> None:
    """Slow: thousands of states, each reached by running the sink's own decisions."""
    result = search((LARGE if SOAK else SMALL)[name])
    assert result.violation is None, "\n".join((result.violation, *result.counterexample))
    assert result.is_complete


@pytest.mark.parametrize("name", CONTROLS)
def test_search_finds_each_rule_that_is_taken_out(name: str) -> None:
    control = CONTROLS[name]
    with control.without():
        result = search(control.configuration)
    assert result.violation is not None
    assert control.violated in result.violation
    assert result.counterexample


def test_merging_equal_processes_changes_no_verdict() -> None:
    """The same search, with each process by its whole history. Slow: many more states."""
    configuration = Configuration(tasks=1, lost_replies=1)
    merged, result = (search(dataclasses.replace(configuration, merge=merge)) for merge in (True, False))
    assert merged.violation is result.violation is None
    assert 1 < merged.states < result.states
    control = CONTROLS["a takeover that aborts before the ledger names the new start"]
    with control.without():
        result = search(dataclasses.replace(control.configuration, merge=False), 50_000)
    assert control.violated in str(result.violation)
