"""The streaming source: where a query begins, how far each batch reads, and when the group's offsets are committed.

Lives on the driver, one Python process per query; pickled copies go to the executors, which only call `read`.
The constructor has no side effects, since Spark also makes readers that it never uses: clients, threads and group
checks begin with the first `latestOffset`.

When what is committed: Spark calls `latestOffset(start, …)` on every trigger, idle ones included, and only when the
batch that ended at `start` is complete and logged. So `start` is what is complete, and it is committed there.
`commit(end)` comes later or never (not for the last batch before a pause or an end): it only repeats it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import is_another_topic
from protocol.consumer.leader_epochs import end_of_epoch
from protocol.consumer.listed_offset import ListedOffset
from protocol.consumer.range import Range
from protocol.consumer.record_sizes import RecordSizes
from protocol.errors import KafkaError, TopicUnknown
from protocol.once import say_once
from protocol.properties import MAX_INT64
from spark_kafka_source.clients import client_for
from spark_kafka_source.driver.discovery import discover, discover_present, rediscover
from spark_kafka_source.driver.group_checks import say_who_decides
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.leaders import leaders
from spark_kafka_source.driver.start_offsets import high_watermarks, log_ends, log_starts, starting_offsets
from spark_kafka_source.options.partitions import TopicPartition, name
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan import limits, losses
from spark_kafka_source.plan.backlog import Backlog, SeenLogs
from spark_kafka_source.plan.offsets import STARTING_OFFSETS, JsonDict, Offsets, topic_ids
from spark_kafka_source.plan.range_groups import groups
from spark_kafka_source.plan.ranges import offset_ranges, unresolved
from spark_kafka_source.spark_api import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from spark_kafka_source.task.input_partition import RangePartition
from spark_kafka_source.task.range_reader import read_range

log = logging.getLogger(__name__)

T = TypeVar("T")

# What record sizes are not learnt by then are taken from before.
_RECORD_SIZES_MS = 2_000
# Nor is what was missing of a replayed batch worth a longer wait.
_COUNT_GONE_MS = 5_000


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, warnings: Sequence[str] = ()) -> None:
        """`warnings`: what there is to say about the options, at the first call of a query."""
        self._options = options
        self._warnings = warnings
        self._starting: Offsets | None = None
        self._commits = GroupCommits(options)
        self._started = False
        self._ids: dict[str, bytes] = {}
        self._target: dict[TopicPartition, ListedOffset] | None = None
        self._seen: SeenLogs | None = None
        self._last_batch_ms: float | None = None
        self._planned_end: JsonDict | None = None
        self._gone_since_planned: dict[TopicPartition, int] = {}
        self._let_go: list[losses.Loss] = []
        self._record_sizes = RecordSizes(options.consumer)

    @property
    def _client(self) -> Client:
        return client_for(self._options.client)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- where it begins ----------------------------------------------------------------------

    def initialOffset(self) -> JsonDict:
        """Stands for `startingOffsets`, which the first `latestOffset` looks up.

        Spark keeps it in no checkpoint, and asks again when a restarted query replays its first batch. By then
        `latest`, a group or a time may mean something else, or cannot be looked up any more.
        """
        return STARTING_OFFSETS

    def _starting_offsets(self, deadline: Deadline) -> Offsets:
        """Where the first batch begins; the answer stays the same. Raises as `latestOffset`."""
        if self._starting is None:
            partitions = discover(self._client, self._options, deadline)
            begins = starting_offsets(self._client, self._options, partitions, deadline)
            self._starting = Offsets(begins, ids=topic_ids(partitions))
        return self._starting

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands to `latestOffset`; it hands `ReadAllAvailable` to a query with the trigger `once`, too."""
        limit = self._options.max_offsets_per_trigger
        others = (self._options.max_bytes_per_trigger, self._options.min_offsets_per_trigger)
        if limit is None and others != (None, None):
            # To be told apart from `once`, which reads everything and never waits.
            limit = MAX_INT64
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes the ends of the logs as they are now: the query ends there."""
        deadline = self._trigger_deadline()

        def target() -> dict[TopicPartition, ListedOffset]:
            # A topic that is missing is judged later, against the offsets that the query starts from.
            return self._log_ends(discover_present(self._client, self._options, deadline), deadline)

        self._target = _while_topics_go(target, deadline)

    # -- one trigger --------------------------------------------------------------------------

    def latestOffset(self, start: JsonDict | None = None, limit: ReadLimit | None = None) -> JsonDict:
        """Commits `start`, which is complete, and says how far the next batch reads; `start` itself if nothing is new.

        Only a query's first batch is there also if nothing is new: its end is to say where the query begins. Before
        PySpark 4.2 it comes without arguments: then the batch that `partitions` saw last is complete.
        Raises `DataLoss` for a topic that is gone, new under its old name, or shorter than before, and
        `DeadlineExceeded` when no broker has answered through all of `fetchOffset.numRetries`. At a query's start also
        `ConfigurationError`: unknown topic, `startingOffsets` that do not fit, a group with live members.
        """
        self._say_warnings()
        if start is None:
            start = STARTING_OFFSETS if self._planned_end is None else self._planned_end
        deadline = self._trigger_deadline()
        if not self._started:
            self._commits.begin(deadline)
        if start == STARTING_OFFSETS:
            begin = self._starting_offsets(deadline)
            start = begin.to_json_dict()
        else:
            begin = Offsets.from_json_dict(start)
            if not self._started:
                say_who_decides(self._client, self._options, begin, deadline)
        self._started = True
        try:
            end = self._plan(begin, limit, deadline)
        except KafkaError:
            self._commits.wait(last=False)
            raise
        self._commits.wait(last=end is None and self._target is not None)
        return start if end is None else end.to_json_dict()

    def _plan(self, begin: Offsets, limit: ReadLimit | None, deadline: Deadline) -> Offsets | None:
        """The next batch's end, None when nothing is new. Commits `begin` as soon as the topics are known to be its."""
        backlog = _while_topics_go(lambda: self._look(begin, deadline), deadline)
        if self._must_wait(backlog.size, limit):
            return None
        max_offsets = self._max_offsets(backlog, limit, deadline)
        end = backlog.batch(limits.end_offsets(backlog.starts, backlog.ends, max_offsets))
        if end is None:
            return None
        losses.say(self._let_go)
        losses.say_gone(begin, backlog.gone)
        self._gone_since_planned = {}
        if self._options.max_input_partitions is not None:
            end = replace(end, leaders=leaders(self._client, end.ends, deadline))
        return end

    def _look(self, begin: Offsets, deadline: Deadline) -> Backlog:
        """What there is to read. Raises `TopicUnknown` when a topic goes meanwhile."""
        self._let_go = []
        partitions = rediscover(self._client, self._options, begin.ends, deadline)
        self._ids = topic_ids(partitions)
        self._commits.mark(begin, self._ids)
        logs = SeenLogs(begin, partitions, self._log_ends(partitions, deadline), first=begin is self._starting)
        if self._options.consumer.isolation_level == "read_committed" and (known := logs.held_back()):
            logs = replace(logs, high_watermarks=high_watermarks(self._client, known, deadline, known_epochs=known))
        self._judge(logs)
        return self._backlog(logs, deadline)

    def _log_ends(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        return log_ends(self._client, self._options, partitions, deadline)

    def _log_starts(self, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        return log_starts(self._client, partitions, deadline)

    def _judge(self, logs: SeenLogs) -> None:
        losses.say_stale(logs.stale - (self._seen.stale if self._seen else set()))
        self._seen = logs
        self._let_go += losses.let_go(losses.recreated(logs), fail=self._options.on_topic_recreated == "fail")
        self._let_go += losses.let_go(losses.deleted(logs), fail=self._options.fail_on_data_loss)

    def _backlog(self, logs: SeenLogs, deadline: Deadline) -> Backlog:
        """What there is to read, after asking where it begins, and telling what is lost."""
        if self._target is not None:
            self._target.update(logs.late_targets(self._target))
        ends, fail = logs.ends(self._target), self._options.fail_on_data_loss
        begins = self._log_starts(logs.new(ends), deadline)
        added = losses.added(logs, begins)
        self._let_go += losses.let_go(added.values(), fail=fail)
        skipped = Counter(self._gone_since_planned) + Counter({key: begins[key] for key in added})
        joined = logs.untold(ends) | {key: min(begins[key], ends[key]) for key in begins}
        backlog = Backlog(logs, ends, joined, skipped=skipped)
        agreed = self._agreed(backlog, deadline)
        ends = ends | {key: max(offset, logs.listed[key].offset) for key, offset in agreed.items()}
        backlog = replace(backlog, ends=ends, joined={**backlog.joined, **agreed})
        return backlog if fail else replace(backlog, gone=self._gone(backlog, deadline))

    def _agreed(self, backlog: Backlog, deadline: Deadline) -> dict[TopicPartition, int]:
        """Where to go on in logs that end before what was read: where other records than those begin (KIP-320)."""
        shorter = backlog.shorter()
        now = topic_ids(discover_present(self._client, self._options, deadline)) if shorter else {}
        agreed = {}
        for key in shorter:
            if now.get(key[0]) != self._ids.get(key[0]):
                # By its name a leader is asked for a topic that was made anew since it was found, too.
                raise TopicUnknown(f"{name(key)} ends before what was read, and is of another topic by now")
            agreed[key] = end = backlog.ends[key]
            if (epoch := backlog.logs.begin.epochs.get(key)) is not None:
                known = end_of_epoch(self._client, *key, epoch, deadline)
                agreed[key] = end if known is None else min(known, end)
            loss = losses.truncated(key, backlog.starts[key], end, agreed[key])
            self._let_go += losses.let_go([loss], fail=self._options.fail_on_data_loss)
        return agreed

    def _gone(self, backlog: Backlog, deadline: Deadline) -> dict[TopicPartition, int]:
        """Where to go on in logs that have lost what was to be read next. Else a task finds that, and fails."""
        behind = backlog.continued()
        begins = self._log_starts(behind, deadline)
        return {key: min(begins[key], backlog.ends[key]) for key in behind if begins[key] > backlog.starts[key]}

    def _must_wait(self, new_offsets: int, limit: ReadLimit | None) -> bool:
        """`minOffsetsPerTrigger`; a run that reads what is there and ends has nothing to wait for."""
        if self._target is not None:
            return False
        now_ms = self._client.clock.now_s() * 1000
        wait = limits.must_wait(
            new_offsets,
            limit,
            min_offsets=self._options.min_offsets_per_trigger,
            max_trigger_delay_ms=self._options.max_trigger_delay_ms,
            now_ms=now_ms,
            last_batch_ms=self._last_batch_ms,
        )
        if not wait:
            self._last_batch_ms = now_ms
        return wait

    def _max_offsets(self, backlog: Backlog, limit: ReadLimit | None, deadline: Deadline) -> int | None:
        """The stricter of `maxOffsetsPerTrigger` and `maxBytesPerTrigger`; None: all there are."""
        max_offsets = limits.max_offsets(limit, self._options.max_offsets_per_trigger)
        max_bytes = limits.max_bytes(limit, self._options.max_bytes_per_trigger)
        starts, ends = backlog.starts, backlog.ends
        behind = {key: starts[key] for key in ends if ends[key] > starts[key]}
        if max_bytes is None or not behind:
            return max_offsets
        self._record_sizes.look(self._client, behind, deadline.at_most_ms(_RECORD_SIZES_MS))
        of_bytes = limits.offsets_of_bytes(starts, ends, self._record_sizes.of(behind), max_bytes)
        return min((most for most in (max_offsets, of_bytes) if most is not None), default=None)

    def partitions(self, start: JsonDict, end: JsonDict) -> Sequence[RangePartition]:
        """The tasks of the batch (start, end). Also called for a replay after a restart, before anything else.

        They follow from the two offsets and the options alone, so a replay has the same ones.
        """
        self._planned_end = end
        until = Offsets.from_json_dict(end)
        begin = self._first_begin(until) if start == STARTING_OFFSETS else Offsets.from_json_dict(start)
        missing = unresolved(begin, until)
        earliest = self._earliest(missing, until) if missing else None
        ranges = offset_ranges(
            begin,
            until,
            max_records=self._options.max_records_per_partition,
            min_partitions=self._options.min_partitions,
            fail_on_data_loss=self._options.fail_on_data_loss,
            earliest=earliest,
        )
        if ranges and not self._started and not self._options.fail_on_data_loss:
            self._gone_since_planned = self._count_gone(ranges)
        return [RangePartition(group) for group in groups(ranges, self._options.max_input_partitions, until.leaders)]

    def _first_begin(self, end: Offsets) -> Offsets:
        """The start of a first batch: `end` says where its partitions begin, or an older version has written it."""
        if unresolved(Offsets({}), end):
            log.warning("the checkpoint does not say where the first batch begins: at startingOffsets as they are now")
            begin = self._starting_offsets(self._trigger_deadline())
            late = losses.late_begins(begin, end)
            losses.say(losses.let_go(late.values(), fail=self._options.fail_on_data_loss))
            return replace(begin, ends={**begin.ends, **{key: end.ends[key] for key in late}})
        if not self._started:
            log.warning("the first batch is not complete: it is read again from where it began, not startingOffsets")
        return Offsets({})

    def _earliest(self, partitions: Collection[TopicPartition], end: Offsets) -> dict[TopicPartition, int]:
        """Where new partitions begin of a batch that Spark's own connector has planned: at its end if they are gone."""
        deadline = self._trigger_deadline()

        def look() -> dict[TopicPartition, int]:
            there = rediscover(self._client, self._options, partitions, deadline)
            return self._log_starts([key for key in partitions if key in there], deadline)

        starts = _while_topics_go(look, deadline)
        gone = sorted(set(partitions) - starts.keys())
        losses.say(losses.let_go(losses.never_read(gone), fail=self._options.fail_on_data_loss))
        return starts | {key: end.ends[key] for key in gone}

    def _count_gone(self, ranges: list[Range]) -> dict[TopicPartition, int]:
        """What is missing of a batch that another run has planned, for the next one to count, an empty one if need be.

        The tasks leave it out and log it. So it is when a query has failed because of that, and goes on with
        `failOnDataLoss=false`. What a topic had that was made anew is in no count.
        """
        deadline = self._client.deadline(_COUNT_GONE_MS)
        try:
            topics = self._client.metadata({one.topic for one in ranges}, deadline).topics
            known = {(topic.name, number) for topic in topics.values() for number in topic.partitions}
            there = [
                one
                for one in ranges
                if (one.topic, one.partition) in known
                and not is_another_topic(topics[one.topic].topic_id, one.topic_id)
            ]
            if unknown := sorted({(one.topic, one.partition) for one in ranges} - known):
                log.warning(
                    "unknown just now, so that nobody counts what is missing: %s", ", ".join(map(name, unknown))
                )
            starts = log_starts(self._client, {(one.topic, one.partition) for one in there}, deadline)
            return losses.count_gone(there, starts)
        except KafkaError as error:
            log.warning("what is missing of the batch that is replayed is not counted: %s", error)
            return {}

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """On an executor: the rows of one task."""
        return read_range(self._options, partition.ranges)

    def commit(self, end: JsonDict) -> None:
        self._commits.mark(Offsets.from_json_dict(end), self._ids)

    def reportLatestOffset(self) -> JsonDict | None:
        """The ends of the logs when the last trigger looked: the progress' `latestOffset`, for lag."""
        return None if self._seen is None else self._seen.log_ends().to_json_dict()

    def stop(self) -> None:
        self._commits.close()

    def _say_warnings(self) -> None:
        for warning in self._warnings:
            say_once(warning)
        self._warnings = ()

    def _trigger_deadline(self) -> Deadline:
        """As long as Spark's connector would try: `fetchOffset.numRetries` times more than once."""
        return self._client.deadline(self._options.offsets_timeout_ms)


def _while_topics_go(look: Callable[[], T], deadline: Deadline) -> T:
    """`look`, again when a topic was deleted in the midst of it. It finds the topics, and then asks their leaders.

    Brokers learn of a deletion one after the other: one still says where the topic is, and the next one does not know
    it. To ask that one for longer would take until the deadline; whoever looks again finds the topic gone. Raises
    `TopicUnknown` when the deadline has passed.
    """
    while True:
        try:
            return look()
        except TopicUnknown as error:
            if deadline.passed:
                raise
            log.info("%s; the topics are looked for again", error)
