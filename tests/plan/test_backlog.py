"""Conclusions of a trigger from a snapshot of the logs. Without brokers; `test_stream_reader` uses a real one."""

from __future__ import annotations

from dataclasses import replace

from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.backlog import Backlog, LogSnapshot
from tests.support.offsets import batch_end, epochs_of

OLD, NEW = b"o" * 16, b"n" * 16
A0, A1, B0, C0 = ("a", 0), ("a", 1), ("b", 0), ("c", 0)


def end(offset: int, epoch: int = 5) -> ListedOffset:
    return ListedOffset(offset, epoch, -1)


BEGIN = batch_end({A0: 10, A1: 10, B0: 4}, ids={"a": OLD, "b": OLD}, epochs={A0: 5, A1: 5, B0: 5})
OWNED = {A0: OLD, A1: OLD, B0: NEW, C0: OLD}
LOGS = LogSnapshot(BEGIN, QueryAssignment(OWNED), {A0: end(20, 6), A1: end(7, 4), B0: end(3, 0), C0: end(8)})

SAME = replace(LOGS, assignment=QueryAssignment(OWNED | {B0: OLD}), listed={**LOGS.listed, B0: end(3)})


def test_older_epoch_counts_only_for_the_same_topic_id() -> None:
    assert LOGS.recreated == {"b": NEW}
    assert LOGS.stale == {A1}
    assert LOGS.new(LOGS.ends(None)) == [B0, C0]
    assert LOGS.ends(None) == {A0: 20, B0: 3, C0: 8, A1: 10}
    assert LOGS.log_end_offsets() == batch_end({A0: 20, B0: 3, C0: 8}, ids={"a": OLD, "b": NEW, "c": OLD})
    nameless = LogSnapshot(replace(BEGIN, ids={}), QueryAssignment(dict.fromkeys(OWNED, NO_TOPIC_ID)), LOGS.listed)
    assert (nameless.recreated, nameless.stale) == ({}, set())


def test_only_positions_in_the_deleted_topic_are_left_out_of_comparisons() -> None:
    """The group's offset in the new topic may be behind an open transaction, whose start is the end that is listed."""
    assert B0 not in LOGS.ends_before_position()
    assigned = replace(LOGS.assignment, starts={B0: Position(10, 0, topic_id=NEW)})
    logs = replace(LOGS, assignment=assigned)
    assert (LOGS.outdated.keys(), logs.outdated) == ({B0}, {})
    assert B0 in logs.ends_before_position()
    assert logs.new(logs.ends(None)) == [C0]


def test_epoch_of_an_assigned_offset_counts_too() -> None:
    """Another member has read A1 to 30, in epoch 6: a leader of epoch 5 is an old one."""
    assigned = replace(LOGS.assignment, starts={A1: Position(30, 6), C0: Position(3, 5)})
    logs = replace(LOGS, assignment=assigned, listed={**LOGS.listed, A1: end(40, 5)})
    assert logs.stale == {A1}
    assert logs.positions[A1] == Position(30, 6)
    assert logs.ends(None)[A1] == 30


def test_run_ends_at_its_target_and_else_at_the_log_end() -> None:
    # C0 is newer than the start and is not read yet: it belongs to the next run.
    assert SAME.late_targets({}) == {A0: end(20, 6), B0: end(3)}
    for offset in (end(15), end(15, 4)):
        assert SAME.late_targets({A0: offset, B0: end(3)}) == {}
    # An old leader reported an end before the offset already read.
    assert SAME.late_targets({A0: end(7, 4), B0: end(3)}) == {A0: end(20, 6)}
    assert SAME.late_targets({A0: end(7, 5), B0: end(3)}) == {}
    assert LOGS.ends({A0: end(15), A1: end(30)}) == {A0: 15, A1: 10}
    # A new query starts at the log end, listed just after the run's end was.
    assert LOGS.ends({A0: end(7)}) == {A0: 10, A1: 10}


def test_run_stays_within_the_current_log() -> None:
    """At the start of the run the log was longer, or another topic's."""
    target = {A0: end(25), B0: end(30)}
    assert LOGS.late_targets(target) == {B0: end(3, 0)}
    assert LOGS.ends(target | LOGS.late_targets(target)) == {A0: 20, B0: 3, A1: 10}
    cut = LogSnapshot(BEGIN, QueryAssignment({A0: OLD}), {A0: end(7, 6)})
    assert Backlog(cut, cut.ends({A0: end(25)}), joined={}).truncated() == [A0]


def test_backlog_starts_at_the_last_batch_or_the_log_start() -> None:
    logs = LogSnapshot(
        BEGIN, QueryAssignment({A0: OLD, A1: OLD, B0: OLD}), {A0: end(20, 6), A1: end(7, 6), B0: end(4, 6)}
    )
    backlog = Backlog(logs, logs.ends(None), joined={})
    assert (backlog.truncated(), backlog.continued()) == ([A1], [A0])
    assert replace(backlog, joined={A0: 12}).continued() == []
    backlog = replace(backlog, joined={A1: 6}, advanced={A0: 12}, skipped={B0: 2})
    assert (backlog.starts, backlog.size) == ({A0: 12, A1: 6, B0: 4}, 9)
    assert backlog.batch({A0: 15, A1: 6, B0: 4}) == batch_end(
        {A0: 15, A1: 6, B0: 4},
        ids={"a": OLD, "b": OLD},
        # Nothing of A1 and B0 is read, so nothing is compared there.
        epochs={A0: 6, A1: 5, B0: 5},
        joined={A1: 6, A0: 12},
        skipped={A0: 2, B0: 2},
    )
    # All records are gone: the offsets compared before are below the log start offset.
    all_gone = replace(backlog, advanced={A0: 20}).batch({A0: 20, A1: 6, B0: 4})
    assert epochs_of(all_gone) == {A0: 6, A1: 5, B0: 5}


def test_batch_is_none_without_new_offsets() -> None:
    logs = LogSnapshot(BEGIN, QueryAssignment({A0: OLD, A1: OLD, B0: OLD}), {A0: end(10), A1: end(10), B0: end(4)})
    backlog = Backlog(logs, logs.ends(None), joined={})
    assert backlog.batch(BEGIN.ends) is None
    assert replace(backlog, skipped={A0: 1}).batch(BEGIN.ends) == replace(BEGIN, skipped={A0: 1})
    # All unread records are gone, or an empty partition is new: the next batch must know.
    assert replace(backlog, joined={A0: 10}).batch(BEGIN.ends) == replace(BEGIN, joined={A0: 10})


def test_first_batch_records_its_start_in_its_end() -> None:
    readable, listed = {A0: OLD, A1: OLD, C0: OLD}, {A0: end(20), A1: end(10), C0: end(3)}
    starting = batch_end({A0: 10, A1: 10, B0: 4}, ids={"a": OLD, "b": OLD})
    logs = LogSnapshot(replace(starting, positions={}), QueryAssignment(readable, starting.positions), listed)
    # B0 is deleted by now, C0 is new.
    assert (logs.new(logs.ends(None)), logs.deleted()) == ([C0], [B0])
    assert logs.joined(logs.ends(None), {C0: 0}) == {A0: 10, A1: 10, C0: 0}
    logs = replace(logs, completed=starting, assignment=QueryAssignment(readable))
    assert logs.joined(logs.ends(None), {C0: 0}) == {C0: 0}
