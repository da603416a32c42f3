"""A model of a group's log, deliveries and commits, which knows nothing of the client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from protocol.kafka_terms import TopicPartition
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.offsets import Committed
from protocol.testing.fake_kafka.requests import Refused
from protocol.testing.simulation import Simulation, heal


class _WatchedOffsets(dict[TopicPartition, Committed]):
    """The cluster's committed offsets of a group, which reports each commit before it is stored."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def __setitem__(self, key: TopicPartition, committed: Committed) -> None:
        self._report(key[1], committed.offset)
        super().__setitem__(key, committed)


class GroupModel:
    """Judges the deliveries and commits of a group that reads one topic, at the moment they happen.

    Members call `assigned`, `delivered`, `processed` and `acknowledged`; the cluster reports commits. The offsets of
    the topic have no gaps, so each record below a committed offset must be processed.

    Parameters
    ----------
    kafka : FakeKafka
    group_id : str
    trace : callable
        Receives broken rules.
    has_other_outcome : callable, optional
        Returns True for a partition and an offset whose record need not be processed, such as a dead letter.

    Attributes
    ----------
    twice : list of str
        Records that were processed a second time, after an owner whose commit did not contain them.
    failures : list of str
        Broken rules: an exception in a thread of the cluster would only close a connection.
    """

    def __init__(
        self,
        kafka: FakeKafka,
        group_id: str,
        trace: Callable[[str], Any],
        has_other_outcome: Callable[[int, int], bool] = lambda partition, offset: False,
    ) -> None:
        self.twice: list[str] = []
        self.failures: list[str] = []
        self._trace = trace
        self._has_other_outcome = has_other_outcome
        self._processed: dict[int, set[int]] = defaultdict(set)
        self._processed_until: dict[int, int] = defaultdict(int)
        self._commits: dict[int, list[int]] = defaultdict(lambda: [0])
        # By member and partition: the next offset, None before the first record; and the newest commit's index before.
        self._next_offsets: dict[tuple[str, int], int | None] = {}
        self._commits_before: dict[tuple[str, int], int] = defaultdict(int)
        self._owners: dict[tuple[int, int], str] = {}
        # Log end offsets at the begin of each pause; and those of partitions that another member has got since.
        self._paused: dict[str, dict[int, int]] = {}
        self._lost_from: dict[tuple[str, int], int] = {}
        kafka.offsets.committed[group_id] = _WatchedOffsets(self._committed)

    # -- called by members ----------------------------------------------------------------------

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        """A member gets partitions, and has not fetched their committed offsets yet."""
        for partition in partitions:
            self._next_offsets[member, partition] = None
            self._lost_from.pop((member, partition), None)
            for former, ends in self._paused.items():
                if former != member:
                    self._lost_from.setdefault((former, partition), ends.get(partition, 0))
            self._commits_before[member, partition] = len(self._commits[partition]) - 1

    def delivered(self, member: str, owner: str, generation: int, partition: int, offsets: list[int]) -> None:
        """A poll has returned records.

        Parameters
        ----------
        member : str
            The process.
        owner : str
            The member's id, or its group instance id.
        generation : int
            The generation, or the member epoch.
        partition : int
        offsets : list of int
        """
        first, end = offsets[0], offsets[-1] + 1
        where = f"{member} in generation {generation}: t-{partition} [{first}, {end})"
        if offsets != list(range(first, end)):
            self.fail(f"{where} has gaps: {offsets}")
        expected = self._next_offsets.get((member, partition))
        starts = self._commits[partition][self._commits_before[member, partition] :]
        if expected is None and first not in starts:
            self.fail(f"{where} starts at none of the committed offsets {starts}")
        if expected is not None and first != expected:
            self.fail(f"{where} does not continue at {expected}")
        if end > self._lost_from.get((member, partition), end):
            self.fail(
                f"{where} has records that were written while it was paused, and another member has the partition"
            )
        former = self._owners.setdefault((generation, partition), owner)
        if former != owner:
            self.fail(f"{where} belongs to {former} as well as {owner}")
        self._next_offsets[member, partition] = end

    def processed(self, member: str, partition: int, offsets: Iterable[int]) -> None:
        """A member has processed records that it got."""
        for offset in offsets:
            if offset in self._processed[partition]:
                self.twice.append(f"{member}: t-{partition}:{offset}")
            self._processed[partition].add(offset)

    def acknowledged(self, member: str, offsets: dict[int, int]) -> None:
        """A synchronous commit of positions has succeeded."""
        for partition, offset in offsets.items():
            if self._commits[partition][-1] < offset:
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
        return [
            f"t-{partition}:{offset}"
            for partition, end in ends.items()
            for offset in range(self._processed_until[partition], end)
            if not self._has_outcome(partition, offset)
        ]

    def commits(self) -> dict[int, int]:
        """Return the committed offsets, without those of empty partitions."""
        return {partition: offsets[-1] for partition, offsets in self._commits.items() if offsets[-1]}

    def _committed(self, partition: int, offset: int) -> None:
        before = self._commits[partition][-1]
        if offset < before:
            self.fail(f"the committed offset of t-{partition} went back from {before} to {offset}")
        while self._processed_until[partition] < offset and self._has_outcome(
            partition, self._processed_until[partition]
        ):
            self._processed_until[partition] += 1
        if offset > self._processed_until[partition]:
            self.fail(f"committed t-{partition} at {offset}, but {self._processed_until[partition]} is not processed")
        self._commits[partition].append(offset)

    def _has_outcome(self, partition: int, offset: int) -> bool:
        return offset in self._processed[partition] or self._has_other_outcome(partition, offset)

    def fail(self, text: str) -> None:
        """Take note of a broken rule."""
        self._trace(f"broken rule: {text}")
        self.failures.append(text)


def wait_until_complete(world: Simulation, kafka: FakeKafka, model: GroupModel, *, calm: bool) -> dict[int, int]:
    """End all faults, wait until all records are processed and committed, and return the log end offsets."""
    heal(world, kafka)
    world.sleep(1 if calm else 20)  # until temporary faults have ended
    ends = log_ends(kafka)
    world.wait_until(lambda: model.failures or not model.unprocessed(ends), 180, "members have processed all records")
    world.wait_until(
        lambda: model.failures or model.commits() == ends, 60, "members have committed the ends of the log"
    )
    return ends


def log_ends(kafka: FakeKafka) -> dict[int, int]:
    """Return the log end offsets of partitions with records."""
    ends = {}
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
