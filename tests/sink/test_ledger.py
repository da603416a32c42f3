"""The ledger of an exactly-once query, stored as the committed offsets of a group."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Corrupt, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.producer.idempotence import ProducerIdentity
from spark_kafka_source.sink.exactly_once.ledger import Ledger, from_offsets, to_offsets

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
