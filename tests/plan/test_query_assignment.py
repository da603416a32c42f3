"""Plans of a query in a consumer group, without a group: partitions are assigned and revoked for any reason."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from itertools import product

import pytest

from protocol.fetch.log_offsets import ListedOffset, Range
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.assignment import QueryAssignment, query_assignment, suspected_topics
from spark_kafka_source.plan.backlog import Backlog, LogSnapshot
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import offset_ranges, unresolved
from tests.support.offsets import batch_end, epochs_of

TOPIC_ID = b"t" * 16
A0, A1, A2 = ("a", 0), ("a", 1), ("a", 2)
EXISTING = dict.fromkeys((A0, A1), TOPIC_ID)
EPOCH = 5


def member(
    assigned: Collection[tuple[str, int]],
    group: Mapping[tuple[str, int], int],
    existing: Mapping[tuple[str, int], bytes] = EXISTING,
) -> QueryAssignment:
    """Return an assignment: assigned partitions start at the group's offsets, other members have all other existing
    partitions."""
    readable = {key: existing[key] for key in assigned}
    starts = {key: Position(group[key]) for key in readable if key in group}
    return QueryAssignment(readable, starts, existing.keys() - readable.keys())


def next_end(
    read: Offsets, assignment: QueryAssignment, ends: Mapping[tuple[str, int], int], start: int = 0
) -> Offsets | None:
    """Return the end of one trigger that reads everything. All logs start at `start`."""
    logs = LogSnapshot(read, assignment, {key: ListedOffset(ends[key], EPOCH, -1) for key in assignment.readable})
    readable = logs.ends(None)
    backlog = Backlog(logs, readable, logs.joined(readable, dict.fromkeys(logs.new(readable), start)))
    assert backlog.truncated() == []
    return backlog.batch(readable)


def ranges(begin: Offsets, end: Offsets) -> list[tuple[int, int, int]]:
    """Return the batch's ranges as the checkpoint defines them, now and in a replay by another process."""
    begin, end = (Offsets.from_json_dict(json.loads(json.dumps(offsets.to_json_dict()))) for offsets in (begin, end))
    assert unresolved(begin, end) == []
    return [
        (source_range.partition, source_range.from_offset, source_range.until_offset)
        for source_range in offset_ranges(begin, end)
    ]


READ = batch_end({A0: 10, A1: 10}, ids={"a": TOPIC_ID}, epochs={A0: EPOCH, A1: EPOCH}, skipped={A1: 3})


def test_first_batch_starts_at_group_offsets_or_log_starts() -> None:
    end = next_end(Offsets({}), member([A0, A1], {A0: 4}), {A0: 9, A1: 9}, start=2)
    assert end == batch_end({A0: 9, A1: 9}, ids={"a": TOPIC_ID}, epochs={A0: 5, A1: 5}, joined={A0: 4, A1: 2})
    assert ranges(Offsets({}), end) == [(0, 4, 9), (1, 2, 9)]


def test_revoked_partition_is_neither_read_nor_lost_nor_forgotten() -> None:
    assignment = member([A0], {A0: 10})
    logs = LogSnapshot(READ, assignment, {A0: ListedOffset(10, EPOCH, -1)})
    assert data_loss.deleted(logs, lambda _: True) == []
    assert next_end(READ, assignment, {A0: 10}) is None, "a revocation alone makes no batch"
    end = next_end(READ, assignment, {A0: 15})
    assert end == batch_end({A0: 15, A1: 10}, READ.ids, epochs_of(READ), skipped=READ.skipped)
    assert ranges(READ, end) == [(0, 10, 15)]


def test_topic_with_all_partitions_revoked_keeps_its_id() -> None:
    """The topic may be recreated before the partitions are assigned again."""
    b0 = ("b", 0)
    assignment = member([b0], {b0: 0}, existing={**EXISTING, b0: b"b" * 16})
    end = next_end(READ, assignment, {b0: 4})
    assert (end.ends, end.ids) == ({**READ.ends, b0: 4}, {"a": TOPIC_ID, "b": b"b" * 16})
    assert epochs_of(end) == {**epochs_of(READ), b0: EPOCH}


@pytest.mark.parametrize(("group", "begins"), [(None, 10), (7, 10), (10, 10), (40, 40)])
def test_reassigned_partition_starts_at_the_larger_offset_of_query_and_group(group: int | None, begins: int) -> None:
    revoked = next_end(READ, member([A0], {}), {A0: 15})
    again = member([A0, A1], {} if group is None else {A1: group})
    end = next_end(revoked, again, {A0: 15, A1: 50})
    assert end.ends == {A0: 15, A1: 50}
    assert end.skipped == READ.skipped, "offsets that other members have read are not skipped"
    assert ranges(revoked, end) == [(1, begins, 50)]
    # The assignment stays until the next rebalance.
    after = next_end(end, again, {A0: 15, A1: 60})
    assert ranges(end, after) == [(1, 50, 60)]
    assert next_end(after, again, {A0: 15, A1: 60}) is None


def test_partition_revoked_and_reassigned_between_two_batches_moves_its_start() -> None:
    end = next_end(READ, member([A0, A1], {A0: 10, A1: 30}), {A0: 10, A1: 30})
    # No record is new, but the start of the next batch has changed.
    assert end == batch_end({A0: 10, A1: 30}, READ.ids, {A0: 5, A1: 5}, joined={A1: 30}, skipped=READ.skipped)
    assert ranges(READ, end) == []


def test_epoch_of_own_last_read_is_not_used_after_another_members_read() -> None:
    """With an epoch that ended before the offset, the broker would report a truncated log."""
    begin = batch_end(READ.ends, READ.ids, {A0: 3, A1: 3}, skipped=READ.skipped)
    end = next_end(begin, member([A0, A1], {A1: 30}), {A0: 10, A1: 30})
    assert epochs_of(end) == {A0: 3, A1: EPOCH}
    end = next_end(begin, member([A0, A1], {A1: 30}), {A0: 10, A1: 35})
    assert offset_ranges(begin, end) == [Range("a", 1, 30, 35, TOPIC_ID, until_epoch=EPOCH)]


def test_deleted_partition_is_a_loss_also_after_revocation() -> None:
    assignment = member([A0], {}, existing={A0: TOPIC_ID})
    (loss,) = data_loss.deleted(LogSnapshot(READ, assignment, {A0: ListedOffset(10, EPOCH, -1)}), lambda _: True)
    assert loss.key == A1
    end = next_end(READ, assignment, {A0: 10})
    # The checkpoint keeps the number of offsets ever skipped.
    assert end == batch_end({A0: 10}, READ.ids, {A0: 5}, skipped=READ.skipped)
    assert end.to_json_dict()["@skippedDeleted"] == {"a": {"1": 3}}
    assert next_end(end, assignment, {A0: 10}) is None
    back = next_end(end, member([A0, A1], {}), {A0: 10, A1: 5}, start=1)
    assert (back.joined, back.skipped) == ({A1: 1}, {A1: 3})


def test_recreated_topic_drops_offsets_of_revoked_partitions() -> None:
    recreated = dict.fromkeys(EXISTING, b"n" * 16)
    end = next_end(READ, member([A0], {A0: 10}, existing=recreated), {A0: 4})
    assert end == batch_end({A0: 4}, {"a": b"n" * 16}, {A0: 5}, joined={A0: 0}, skipped={A1: 3})


def test_offsets_are_read_once_by_two_members_in_any_order_of_assignments() -> None:
    """Try every split of three partitions between two members in three rounds; each member commits what it has read."""
    three = dict.fromkeys((A0, A1, A2), TOPIC_ID)
    for rounds in product(product((0, 1), repeat=3), repeat=3):
        group: dict[tuple[str, int], int] = {}
        read: list[Offsets] = [Offsets({}), Offsets({})]
        delivered: list[tuple[int, int, int]] = []
        for at, owners in enumerate(rounds, 1):
            for reader in (0, 1):
                keys = [key for key, owner in zip(three, owners, strict=True) if owner == reader]
                end = next_end(read[reader], member(keys, group, three), dict.fromkeys(three, 10 * at))
                if end is not None:
                    delivered += ranges(read[reader], end)
                    read[reader] = end
                group.update({key: read[reader].ends[key] for key in keys})
        assert sorted(delivered) == [(number, 10 * at, 10 * at + 10) for number in range(3) for at in range(3)]


OTHER_ID = b"o" * 16


# Ids: assigned by the group, that was read, and at the brokers; then the conclusions.
WITNESSES: dict[str, tuple[bytes, bytes, set[bytes], bool, bool, bool, bool]] = {
    "the topic that was read": (NO_TOPIC_ID, TOPIC_ID, set(), False, True, False, False),
    "a topic whose id is unknown": (NO_TOPIC_ID, NO_TOPIC_ID, set(), False, True, False, False),
    "brokers agree about another one": (NO_TOPIC_ID, OTHER_ID, {TOPIC_ID}, True, True, False, True),
    "brokers do not agree": (NO_TOPIC_ID, OTHER_ID, {TOPIC_ID, OTHER_ID}, True, False, True, False),
    "no broker answers": (NO_TOPIC_ID, OTHER_ID, set(), True, False, True, False),
    "the group has assigned the new one": (TOPIC_ID, OTHER_ID, set(), False, True, False, True),
    "the group has not assigned the new one yet": (OTHER_ID, OTHER_ID, {TOPIC_ID}, True, False, True, True),
    "one broker names a new one": (OTHER_ID, OTHER_ID, {TOPIC_ID, OTHER_ID}, True, False, True, False),
    "the group has assigned one that no broker names": (OTHER_ID, TOPIC_ID, set(), False, False, True, False),
}


@pytest.mark.parametrize(
    ("assigned", "read", "at_brokers", "asked", "readable", "awaited", "recreated"), WITNESSES.values(), ids=WITNESSES
)
def test_topic_counts_as_recreated_if_a_second_witness_says_so(
    assigned: bytes,
    read: bytes,
    at_brokers: set[bytes],
    asked: bool,
    readable: bool,
    awaited: bool,
    recreated: bool,
) -> None:
    """`TOPIC_ID` is the id that one broker reports. An awaited topic without certainty keeps its position."""
    completed = Offsets.at({A0: Position(10, topic_id=read)})
    existing, ids = {A0: TOPIC_ID}, {A0: assigned}
    assert suspected_topics(existing, ids, completed) == ({"a"} if asked else set())
    assignment = query_assignment(existing, ids, completed, {"a": at_brokers} if asked else {})
    assert (A0 in assignment.readable, "a" in assignment.awaited) == (readable, awaited)
    assert assignment.recreated(completed) == ({"a": TOPIC_ID} if recreated else {})
    assert (A0 in assignment.positions(completed)) == (not recreated)


def test_partition_that_only_a_lagging_broker_lacks_is_not_deleted() -> None:
    completed = Offsets.at({A0: Position(10, topic_id=OTHER_ID), A1: Position(10, topic_id=OTHER_ID)})
    assignment = query_assignment({A0: TOPIC_ID}, {A0: NO_TOPIC_ID}, completed, {"a": {TOPIC_ID, OTHER_ID}})
    assert LogSnapshot(completed, assignment, {}).deleted() == []


def test_topic_that_another_member_reads_is_asked_about_if_a_partition_seems_lost() -> None:
    """One broker names another topic with fewer partitions: with `onTopicRecreated=fail` the query would end."""
    completed = Offsets.at(dict.fromkeys((A0, A1), Position(10, topic_id=OTHER_ID)))
    assert suspected_topics({A0: TOPIC_ID}, {}, completed) == {"a"}
    assert suspected_topics(EXISTING, {}, completed) == set()


def test_start_in_a_recreated_topic_keeps_its_epoch_until_it_is_read() -> None:
    """A stale leader lists an older end; with its epoch the log would seem truncated later."""
    completed, start = Offsets.at({A0: Position(20, 1, topic_id=OTHER_ID)}), Position(90, 3, topic_id=TOPIC_ID)
    logs = LogSnapshot(completed, QueryAssignment({A0: TOPIC_ID}, {A0: start}), {A0: ListedOffset(60, 2, -1)})
    ends = logs.ends(None)
    end = Backlog(logs, ends, logs.joined(ends, {})).batch(ends)
    assert end.positions == {A0: start}
