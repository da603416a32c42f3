"""A model of a group's log, deliveries and commits, which knows nothing of the client."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.group import Group, Member
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.record_batches import read_batch, rows
from protocol.testing.fake_kafka.requests import Body, Refused
from protocol.testing.simulation import Simulation, heal

Record = tuple[int, bytes]
"""Offset and value; each value is written once, or again after it was lost."""


@dataclass(eq=False)
class Log:
    """The model of a partition's log; a recreated topic has other logs.

    Attributes
    ----------
    processed : set of int
        Offsets of processed records, also of lost ones.
    processed_until : int
        All offsets before it are processed, or deleted.
    commits : list of int
    commits_before : dict of str to int
        By member: index of the newest commit when it got the partition.
    commit_epoch : int
        Leader epoch of the newest commit.
    resumes : set of int
        Offsets at which reading continues after a loss: ends of truncated logs, and log start offsets.
    truncated_epoch : int
        Leader epoch at the last truncation; records with a newer epoch were written later.
    records : set of Record
        Records that the log had before each loss.
    processed_records : set of Record
    """

    processed: set[int] = field(default_factory=set)
    processed_until: int = 0
    commits: list[int] = field(default_factory=lambda: [0])
    commits_before: dict[str, int] = field(default_factory=dict)
    commit_epoch: int = -1
    resumes: set[int] = field(default_factory=set)
    truncated_epoch: int = -1
    records: set[Record] = field(default_factory=set)
    processed_records: set[Record] = field(default_factory=set)


class _WatchedOffsets(dict[TopicPartition, Committed]):
    """The cluster's committed offsets of a group, which reports each commit before it is stored."""

    def __init__(self, report: Callable[[int, Committed], None]) -> None:
        self._report = report

    def __setitem__(self, key: TopicPartition, committed: Committed) -> None:
        self._report(key[1], committed)
        super().__setitem__(key, committed)


class _WatchedGroups(dict[str, Group]):
    """The cluster's classic groups, with the round in which each member got a generation.

    Another coordinator does not know a generation that had no assignment yet: a later round has the same number.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, int], int] = {}
        self._forgotten: Counter[int] = Counter()

    def round_of(self, member_id: str, generation: int) -> int:
        """Return how often the generation had been forgotten when the member got it; 0 for a member epoch."""
        return self._rounds.get((member_id, generation), 0)

    def setdefault(self, group_id: str, group: Group) -> Group:  # type: ignore[override]
        """Return a group, and watch a new one."""
        if group_id not in self:
            self[group_id] = self._watched(group)
        return self[group_id]

    def _watched(self, group: Group) -> Group:
        joined, load = group.joined, group.load

        def watched_joined(member: Member, *, skip_assignment: bool = False) -> Body:
            self._rounds[member.member_id, group.generation] = self._forgotten[group.generation]
            return joined(member, skip_assignment=skip_assignment)

        def watched_load(now_s: float) -> None:
            newest = group.generation
            load(now_s)
            self._forgotten.update(range(group.generation + 1, newest + 1))

        group.joined, group.load = watched_joined, watched_load  # type: ignore[method-assign]
        return group


class GroupModel:
    """Judges the deliveries and commits of a group that reads one topic, at the moment they happen.

    Members call `assigned`, `delivered`, `processed` and `acknowledged`; the cluster reports commits. The offsets of
    the topic have no gaps, so each record below a committed offset must be processed.

    With `has_losses`, logs lose their ends and beginnings, and the topic is recreated. Then a record is known by its
    value. A member may read elsewhere than behind its last record only after a warning, see `told`. No record of the
    present log is skipped, and a commit behind records that were written after a truncation has processed these.

    Parameters
    ----------
    kafka : FakeKafka
    group_id : str
    trace : callable
        Receives broken rules.
    has_other_outcome : callable, optional
        Returns True for a partition and an offset whose record need not be processed, such as a dead letter.
    has_no_record : callable, optional
        Returns True for a partition and an offset without a record for members, such as a marker.
    has_losses : bool
        The scenario calls `lost`, `deleted` and `recreated`, and members pass the values of records.
    assigns_by_id : bool
        The group assigns topics by id: a member reads a recreated topic only after it was `assigned` partitions of it.
    loses_replies : bool
        A commit whose reply is lost is sent again; its first copy may arrive after later commits.

    Attributes
    ----------
    twice : list of str
        Records that were processed a second time, after an owner whose commit did not contain them.
    failures : list of str
        Broken rules: an exception in a thread of the cluster would only close a connection.
    losses : int
        Number of losses that members have reported in their logs.
    fenced : set of str
        Members that have got the error FENCED_INSTANCE_ID, so that they get no more records.
    """

    def __init__(
        self,
        kafka: FakeKafka,
        group_id: str,
        trace: Callable[[str], Any],
        has_other_outcome: Callable[[int, int], bool] = lambda partition, offset: False,
        has_no_record: Callable[[int, int], bool] = lambda partition, offset: False,
        *,
        has_losses: bool = False,
        assigns_by_id: bool = False,
        loses_replies: bool = False,
    ) -> None:
        self.twice: list[str] = []
        self.failures: list[str] = []
        self.losses = 0
        self.fenced: set[str] = set()
        self._kafka = kafka
        self._trace = trace
        self._group_id = group_id
        self._has_other_outcome = has_other_outcome
        self._has_no_record = has_no_record
        self._has_losses = has_losses
        self._assigns_by_id = assigns_by_id
        self._loses_replies = loses_replies
        self._logs: dict[int, Log] = defaultdict(Log)
        self._deleted_topics: dict[bytes, dict[int, Log]] = {}
        # By member and partition: the log and the next offset; no log after a loss; missing before the first record.
        self._next: dict[tuple[str, int], tuple[Log | None, int]] = {}
        # By member and partition: the log of the first record since the assignment.
        self._assigned_logs: dict[tuple[str, int], Log] = {}
        # By generation, its round and partition.
        self._owners: dict[tuple[int, int, int], str] = {}
        # By member and partition: an offset at which the member may start, although it is not committed.
        self._uncommitted: dict[tuple[str, int], int] = {}
        # By paused member: the log end offsets at the start of its pause.
        self._paused: dict[str, dict[int, int]] = {}
        # By paused member and partition that another member has got: the log end offset at the start of the pause.
        self._lost_from: dict[tuple[str, int], int] = {}
        self._groups = _WatchedGroups()
        kafka.groups.groups = self._groups
        kafka.offsets.committed[group_id] = _WatchedOffsets(self._committed)

    # -- called by members ----------------------------------------------------------------------

    def assigned(self, member: str, partitions: Iterable[int], uncommitted: Mapping[int, int] | None = None) -> None:
        """A member gets partitions, and has not fetched their committed offsets yet.

        It may start at an offset in `uncommitted`, by partition: its own, whose commit is in flight.
        """
        for partition in partitions:
            self._uncommitted[member, partition] = (uncommitted or {}).get(partition, -1)
            self._next.pop((member, partition), None)
            self._assigned_logs.pop((member, partition), None)
            self._lost_from.pop((member, partition), None)
            for former, ends in self._paused.items():
                if former != member:
                    self._lost_from.setdefault((former, partition), ends.get(partition, 0))
            self._logs[partition].commits_before[member] = len(self._logs[partition].commits) - 1

    def delivered(
        self,
        member: str,
        member_id: str,
        generation: int,
        partition: int,
        offsets: list[int],
        values: Sequence[bytes] = (),
        *,
        instance: str = "",
    ) -> None:
        """A poll has returned records.

        Parameters
        ----------
        member : str
            The process.
        member_id : str
        generation : int
            The generation, or the member epoch.
        partition : int
        offsets : list of int
        values : sequence of bytes
            With `has_losses`.
        instance : str
            The group instance id: processes with the same one are one owner.
        """
        first, end = offsets[0], offsets[-1] + 1
        where = f"{member} in generation {generation}: t-{partition} [{first}, {end})"
        returned = set(offsets)
        gaps = [offset for offset in range(first, end) if offset not in returned]
        if offsets != sorted(returned) or not all(self._has_no_record(partition, offset) for offset in gaps):
            self.fail(f"{where} has gaps: {offsets}")
        if member in self.fenced:
            self.fail(f"{where} after FENCED_INSTANCE_ID")
        log = self._log_of(partition, list(zip(offsets, values, strict=False)))
        if log is None:
            self.fail(f"{where} has records that no log had: {values}")
            return
        former_log, expected = self._next.get((member, partition), (None, None))
        starts = log.commits[log.commits_before.get(member, 0) :]
        if (own := self._uncommitted.get((member, partition), -1)) >= 0:
            starts.append(own)
        if expected is None and not any(
            self._is_next(partition, start, first) for start in (*reversed(starts), *log.resumes)
        ):
            self.fail(f"{where} starts at none of the committed offsets {starts}, nor at {log.resumes}")
        if expected is not None and not self._is_next(partition, expected, first):
            self.fail(f"{where} does not continue at {expected}")
        if former_log is not None and former_log is not log:
            self.fail(f"{where} belongs to another topic than the records before, and the member has logged no loss")
        if self._assigned_logs.setdefault((member, partition), log) is not log and self._assigns_by_id:
            self.fail(f"{where} belongs to another topic than that which the group has assigned")
        if self._has_losses and log is self._logs[partition]:
            self._check_skipped(where, partition, log, (first, values[0]))
        is_whole = log is self._logs[partition] and not (log.resumes or self._deleted_topics)
        if is_whole and end > self._lost_from.get((member, partition), end):
            self.fail(
                f"{where} has records that were written while it was paused, and another member has the partition"
            )
        owner = instance or member_id
        former = self._owners.setdefault((generation, self._groups.round_of(member_id, generation), partition), owner)
        if former != owner:
            self.fail(f"{where} belongs to {former} as well as {owner}")
        self._next[member, partition] = log, end

    def _is_next(self, partition: int, expected: int, offset: int) -> bool:
        """Return True if no record lies between two offsets."""
        return expected <= offset and all(self._has_no_record(partition, gap) for gap in range(expected, offset))

    def membership(self, member_id: str) -> object:
        """Return the cluster's object of a member; None if it is not in the group, another one once it joins again."""
        groups = (self._groups.get(self._group_id), self._kafka.groups.consumer_groups.get(self._group_id))
        return next((group.members[member_id] for group in groups if group and member_id in group.members), None)

    def processed(self, member: str, partition: int, offsets: Sequence[int], values: Sequence[bytes] = ()) -> None:
        """A member has processed records that it got."""
        records = list(zip(offsets, values, strict=False))
        if (log := self._log_of(partition, records)) is None:
            return
        for offset in offsets:
            if offset in log.processed:
                self.twice.append(f"{member}: t-{partition}:{offset}")
            log.processed.add(offset)
        log.processed_records.update(records)

    def told(self, member: str, partition: int, offset: int) -> None:
        """A member logs that its position is lost, and that it continues at an offset."""
        self.losses += 1
        logs = [self._logs[partition], *(logs[partition] for logs in self._deleted_topics.values())]
        if not any(offset in log.resumes for log in logs) and not (self._deleted_topics and offset == 0):
            self.fail(f"{member} logs that t-{partition} continues at {offset}, where no loss has ended")
        self._next[member, partition] = None, offset

    def acknowledged(self, member: str, offsets: dict[int, int]) -> None:
        """A synchronous commit of positions has succeeded."""
        for partition, offset in offsets.items():
            log = self._logs[partition]
            # After a loss, the positions of the member are no longer those of its last records.
            if log.commits[-1] < offset and (
                not self._has_losses
                or (self._next.get((member, partition)) == (log, offset) and max(log.commits) < offset)
            ):
                self.fail(f"{member}: the commit of t-{partition} at {offset} succeeded, but is not in the log")

    # -- for the scenario -----------------------------------------------------------------------

    def paused(self, member: str, log_ends: dict[int, int]) -> None:
        """A member's process is paused. It has fetched no record beyond these offsets."""
        self._paused[member] = log_ends

    def continues(self, member: str) -> None:
        """A member's process is about to continue. It must notice that another member has got its partitions."""
        self._paused.pop(member, None)

    def unprocessed(self, ends: dict[int, int]) -> list[str]:
        """Return records below the log end offsets that no member has processed."""
        if self._has_losses:
            return [
                f"t-{partition}:{record[0]}"
                for partition in ends
                for record in self._present(partition)
                if record not in self._logs[partition].processed_records
            ]
        return [
            f"t-{partition}:{offset}"
            for partition, end in ends.items()
            for offset in range(self._logs[partition].processed_until, end)
            if not self._has_outcome(partition, self._logs[partition], offset)
        ]

    def commits(self) -> dict[int, int]:
        """Return the committed offsets, without those of empty partitions."""
        return {partition: log.commits[-1] for partition, log in self._logs.items() if log.commits[-1]}

    def _committed(self, partition: int, committed: Committed) -> None:
        offset, log = committed.offset, self._deleted_topics.get(committed.topic_id, self._logs)[partition]
        before = log.commits[-1]
        is_truncated = log.commit_epoch <= log.truncated_epoch and offset >= min(log.resumes, default=before)
        is_late_copy = self._loses_replies and offset in log.commits
        if offset < before and not is_truncated and not is_late_copy:
            self.fail(f"the committed offset of t-{partition} went back from {before} to {offset}")
        while log.processed_until < offset and self._has_outcome(partition, log, log.processed_until):
            log.processed_until += 1
        if offset > log.processed_until:
            self.fail(f"committed t-{partition} at {offset}, but {log.processed_until} is not processed")
        if committed.leader_epoch > log.truncated_epoch >= 0 and log is self._logs[partition]:
            self._check_skipped(f"the commit of t-{partition} at {offset}", partition, log, (offset, b""))
        log.commits.append(offset)
        log.commit_epoch = committed.leader_epoch

    def _has_outcome(self, partition: int, log: Log, offset: int) -> bool:
        return offset in log.processed or self._has_other_outcome(partition, offset)

    # -- losses ---------------------------------------------------------------------------------

    def lost(self, partition: int, end: int, log_end: int) -> None:
        """An unclean election is about to lose the end of a log."""
        log = self._logs[partition]
        log.records |= self._present(partition)
        log.resumes.add(end)
        log.truncated_epoch = self._kafka.controller.image.topics["t"].partitions[partition].leader_epoch

    def deleted(self, partition: int, former_start: int, start: int) -> None:
        """Retention is about to delete the beginning of a log."""
        log = self._logs[partition]
        log.records |= self._present(partition)
        log.resumes.add(start)
        log.processed_until = max(log.processed_until, start)

    def recreated(self) -> None:
        """The topic is about to be deleted, and created again."""
        image = self._kafka.controller.image.topics["t"]
        for partition in range(len(image.partitions)):
            self._logs[partition].records |= self._present(partition)
        self._deleted_topics[image.topic_id] = self._logs
        self._logs = defaultdict(Log)

    def _present(self, partition: int) -> set[Record]:
        """Return the present records of a partition, also records that are not replicated yet."""
        image = self._kafka.controller.image.topics.get("t")
        if image is None or image.topic_id in self._deleted_topics or partition >= len(image.partitions):
            return set()
        leader = self._kafka.brokers.get(image.partitions[partition].leader)
        replica = None if leader is None else leader.replicas.get((image.topic_id, partition))
        if replica is None:
            return set()
        records = {record for batch in replica.log.batches for record in _records_of(batch.data)}
        return {record for record in records if record[0] >= replica.log.start_offset}

    def _log_of(self, partition: int, records: list[Record]) -> Log | None:
        """Return the newest log that has or had these records."""
        newest = self._logs[partition]
        if not self._has_losses or set(records) <= newest.records | self._present(partition):
            return newest
        former = [logs[partition] for logs in self._deleted_topics.values()]
        return next((log for log in reversed(former) if set(records) <= log.records), None)

    def _check_skipped(self, where: str, partition: int, log: Log, until: Record) -> None:
        """Fail if the present log has records before a record, or an offset, that no member has processed."""
        present = self._present(partition)
        if until[1] and until not in present:
            return  # lost after it was fetched
        if skipped := sorted(
            record for record in present if record[0] < until[0] and record not in log.processed_records
        ):
            self.fail(f"{where} skips {skipped}")

    def fail(self, text: str) -> None:
        """Take note of a broken rule."""
        self._trace(f"broken rule: {text}")
        self.failures.append(text)


@cache
def _records_of(batch: bytes) -> list[Record]:
    return [(row["offset"], row["value"]) for row in rows([read_batch(batch)])]


def wait_until_complete(
    world: Simulation,
    kafka: FakeKafka,
    model: GroupModel,
    *,
    calm: bool,
    is_committed: Callable[[dict[int, int]], bool] | None = None,
) -> dict[int, int]:
    """End all faults, wait until all records are processed and committed, and return the log end offsets.

    `is_committed` replaces the comparison of the committed offsets with the ends.
    """
    is_committed = is_committed or (lambda ends: model.commits() == ends)
    heal(world, kafka)
    world.sleep(1 if calm else 20)  # until temporary faults have ended
    ends = log_ends(kafka)
    world.wait_until(lambda: model.failures or not model.unprocessed(ends), 180, "members have processed all records")
    world.wait_until(lambda: model.failures or is_committed(ends), 60, "members have committed the ends of the log")
    return ends


def log_ends(kafka: FakeKafka) -> dict[int, int]:
    """Return the log end offsets of partitions with records."""
    ends: dict[int, int] = {}
    if "t" not in kafka.controller.image.topics:
        return ends
    for partition in range(len(kafka.controller.image.topics["t"].partitions)):
        with suppress(Refused):  # a new partition, of which an isolated leader does not know yet
            ends[partition] = kafka.log("t", partition).end_offset
    return {partition: end for partition, end in ends.items() if end}


def leave_and_judge(world: Simulation, model: GroupModel, leaving: set[str], *, calm: bool) -> None:
    """Let all members leave, and fail for broken rules, and for repeated records of a run without faults."""
    leaving.update(process.name for process in world.processes)
    for process in world.alive("member"):
        process.join(120)
    assert not model.failures, model.failures[:3]
    assert not (calm and model.twice), f"twice without a cause: {model.twice[:3]}"
