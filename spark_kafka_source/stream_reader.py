"""The streaming source: where a query begins, how far each batch reads, and when the group's offsets are committed.

Lives on the driver, one Python process per query; pickled copies go to the executors, which only call `read`.
The constructor has no side effects, since Spark also makes readers that it never uses: clients, threads and group
checks begin with the first `initialOffset` or `latestOffset`.

When what is committed: Spark calls `latestOffset(start, …)` on every trigger, idle ones included, and only when the
batch that ended at `start` is complete and logged. So `start` is what is complete, and it is committed there.
`commit(end)` comes later or never (not for the last batch before a pause or an end): it only repeats it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import NO_TOPIC_ID, topic_id_text
from protocol.consumer.leader_epochs import end_of_epoch
from protocol.consumer.list_offsets import ListedOffset
from protocol.consumer.record_sizes import RecordSizes
from protocol.errors import DataLoss, KafkaError
from protocol.properties import MAX_INT64
from spark_kafka_source import limits
from spark_kafka_source.clients import client_for
from spark_kafka_source.discovery import discover, discover_present, rediscover
from spark_kafka_source.error_classes import (
    ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
    PARTITION_OFFSET_CHANGED,
    PARTITIONS_DELETED,
    named,
)
from spark_kafka_source.group_checks import say_who_decides
from spark_kafka_source.group_commits import GroupCommits
from spark_kafka_source.input_partition import RangePartition
from spark_kafka_source.leaders import leaders
from spark_kafka_source.offsets import JsonDict, Offsets, TopicPartition, name, topic_ids
from spark_kafka_source.options import SourceOptions
from spark_kafka_source.range_groups import groups
from spark_kafka_source.range_reader import read_range
from spark_kafka_source.ranges import OffsetRange, offset_ranges, unresolved
from spark_kafka_source.spark_api import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from spark_kafka_source.start_offsets import log_ends, log_starts, starting_offsets

log = logging.getLogger(__name__)

# What record sizes are not learnt by then are taken from before.
_RECORD_SIZES_MS = 2_000
# Nor is what was missing of a replayed batch worth a longer wait.
_COUNT_GONE_MS = 5_000


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: JsonDict | None = None
        self._commits = GroupCommits(options)
        self._started = False
        self._ids: dict[str, bytes] = {}
        self._target: dict[TopicPartition, ListedOffset] | None = None
        self._stale: set[TopicPartition] = set()
        self._log_ends: Offsets | None = None
        self._last_batch_ms: float | None = None
        self._planned_end: JsonDict | None = None
        self._gone_since_planned: dict[TopicPartition, int] = {}
        self._record_sizes = RecordSizes(options.consumer)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- where it begins ----------------------------------------------------------------------

    def initialOffset(self) -> JsonDict:
        """Where a query without a checkpoint begins. Spark asks twice: the answer stays the same.

        Raises `ConfigurationError` (unknown topic, JSON that does not fit, a group with live members),
        `DataLoss` (the group's offsets are gone) or `DeadlineExceeded` (no broker answers).
        """
        if self._initial is None:
            client = client_for(self._options.client)
            deadline = client.deadline()
            self._commits.begin(deadline)
            partitions = discover(client, self._options, deadline)
            begins = starting_offsets(client, self._options, partitions, deadline)
            self._initial = Offsets(begins, ids=topic_ids(partitions)).to_json_dict()
        return self._initial

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
        client = client_for(self._options.client)
        deadline = self._trigger_deadline()
        # A topic that is missing is judged later, against the offsets that the query starts from.
        partitions = discover_present(client, self._options, deadline)
        self._target = log_ends(client, self._options, partitions, deadline)

    # -- one trigger --------------------------------------------------------------------------

    def latestOffset(self, start: JsonDict | None = None, limit: ReadLimit | None = None) -> JsonDict:
        """Commits `start`, which is complete, and says how far the next batch reads; `start` itself if nothing is new.

        Before PySpark 4.2 it comes without arguments: then the batch that `partitions` saw last is complete.
        Raises `DataLoss` for a topic that is gone, new under its old name, or shorter than before, and
        `DeadlineExceeded` when no broker has answered through all of `fetchOffset.numRetries`.
        """
        if start is None:
            start = self._planned_end or self.initialOffset()
        begin = Offsets.from_json_dict(start)
        deadline = self._trigger_deadline()
        if not self._started:
            self._commits.begin(deadline)
            self._started = True
            if self._initial is None:
                say_who_decides(client_for(self._options.client), self._options, begin, deadline)
        try:
            end = self._plan(begin, limit, deadline)
        except KafkaError:
            self._commits.wait(last=False)
            raise
        self._commits.wait(last=end is None and self._target is not None)
        return start if end is None else end.to_json_dict()

    def _plan(self, begin: Offsets, limit: ReadLimit | None, deadline: Deadline) -> Offsets | None:
        """The next batch's end, None when nothing is new. Commits `begin` as soon as the topics are known to be its."""
        client = client_for(self._options.client)
        partitions = rediscover(client, self._options, begin.ends, deadline)
        self._ids = ids = topic_ids(partitions)
        self._commits.mark(begin, ids)
        listed = log_ends(client, self._options, partitions, deadline)
        # Those of another topic, or perhaps of another one, tell nothing.
        same = {topic for topic, topic_id in begin.ids.items() if ids.get(topic) == topic_id}
        known_epochs = {key: epoch for key, epoch in begin.epochs.items() if key[0] in same}
        self._judge_stale({key for key, epoch in known_epochs.items() if key in listed and listed[key].is_stale(epoch)})
        ends = {key: entry.offset for key, entry in listed.items() if key not in self._stale}
        self._log_ends = Offsets(ends, ids=topic_ids({key: partitions[key] for key in ends}))
        recreated = self._judge_recreated(begin, ids)
        self._judge_missing(begin, partitions, recreated)
        if self._target is not None:
            ends = self._up_to_target(begin, {key: listed[key] for key in ends}, known_epochs)
        ends = {**ends, **{key: begin.ends[key] for key in self._stale}}
        joined_keys = [key for key in ends if key not in begin.ends or key[0] in recreated]
        joined = log_starts(client, joined_keys, deadline) if joined_keys else {}
        added = self._judge_added(begin, joined, recreated)
        joined = {key: min(offset, ends[key]) for key, offset in joined.items()}
        starts = {key: joined.get(key, begin.ends.get(key, 0)) for key in ends}
        shorter = self._judge_shorter(begin, starts, ends, deadline)
        gone = {} if self._options.fail_on_data_loss else self._gone(begin, starts, ends, deadline)
        joined.update({**shorter, **gone})
        starts.update({**shorter, **gone})
        if self._must_wait(sum(ends[key] - starts[key] for key in ends), limit):
            return None
        planned = limits.end_offsets(starts, ends, self._max_offsets(client, starts, ends, limit, deadline))
        if not joined and planned == dict(begin.ends) and not self._gone_since_planned:
            return None
        epochs = {key: listed[key].leader_epoch for key in planned if key in listed and listed[key].leader_epoch >= 0}
        # Where nothing is read nothing is compared with the log either: the next batch there still has to.
        idle = [key for key in planned if planned[key] == starts[key] and key[0] not in recreated and key not in gone]
        epochs.update({key: begin.epochs[key] for key in idle if key in begin.epochs})
        if gone:
            self._say_gone(begin, gone)
        skipped = Counter(begin.skipped)
        for lost in (added, {key: offset - begin.ends[key] for key, offset in gone.items()}, self._gone_since_planned):
            skipped.update(lost)
        self._gone_since_planned = {}
        return Offsets(
            planned,
            ids={topic: ids[topic] for topic, _ in planned if topic in ids},
            epochs=epochs,
            joined=joined,
            leaders={} if self._options.max_input_partitions is None else leaders(client, planned, deadline),
            skipped={key: count for key, count in skipped.items() if key in planned and count},
        )

    def _up_to_target(
        self, begin: Offsets, listed: Mapping[TopicPartition, ListedOffset], epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where `availableNow` ends. What was missing, or had an old leader, when that was noted, is noted now."""
        assert self._target is not None
        for key in listed.keys() & begin.ends.keys():
            noted = self._target.get(key)
            if noted is None or (noted.offset < begin.ends[key] and noted.is_stale(epochs.get(key, -1))):
                self._target[key] = listed[key]
        return {key: self._target[key].offset for key in listed if key in self._target}

    def _must_wait(self, new_offsets: int, limit: ReadLimit | None) -> bool:
        """`minOffsetsPerTrigger`; a run that reads what is there and ends has nothing to wait for."""
        if self._target is not None:
            return False
        now_ms = client_for(self._options.client).clock.now_s() * 1000
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

    def _max_offsets(
        self,
        client: Client,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        limit: ReadLimit | None,
        deadline: Deadline,
    ) -> int | None:
        """The stricter of `maxOffsetsPerTrigger` and `maxBytesPerTrigger`; None: all there are."""
        max_offsets = limits.max_offsets(limit, self._options.max_offsets_per_trigger)
        max_bytes = limits.max_bytes(limit, self._options.max_bytes_per_trigger)
        behind = {key: starts[key] for key in ends if ends[key] > starts[key]}
        if max_bytes is None or not behind:
            return max_offsets
        self._record_sizes.look(client, behind, deadline.at_most_ms(_RECORD_SIZES_MS))
        of_bytes = limits.offsets_of_bytes(starts, ends, self._record_sizes.of(behind), max_bytes)
        return min((most for most in (max_offsets, of_bytes) if most is not None), default=None)

    def partitions(self, start: JsonDict, end: JsonDict) -> Sequence[RangePartition]:
        """The tasks of the batch (start, end). Also called for a replay after a restart, before anything else.

        They follow from the two offsets and the options alone, so a replay has the same ones.
        """
        self._planned_end = end
        begin, until = Offsets.from_json_dict(start), Offsets.from_json_dict(end)
        missing = unresolved(begin, until)
        earliest = log_starts(client_for(self._options.client), missing, self._trigger_deadline()) if missing else None
        ranges = offset_ranges(
            begin,
            until,
            max_records=self._options.max_records_per_partition,
            min_partitions=self._options.min_partitions,
            fail_on_data_loss=self._options.fail_on_data_loss,
            earliest=earliest,
        )
        if ranges and not self._started and self._options.on_topic_recreated == "earliest":
            ranges = self._without_recreated(ranges)
        if ranges and not self._started and not self._options.fail_on_data_loss:
            self._gone_since_planned = self._count_gone(ranges)
        return [RangePartition(group) for group in groups(ranges, self._options.max_input_partitions, until.leaders)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """On an executor: the rows of one task."""
        return read_range(self._options, partition.ranges)

    def commit(self, end: JsonDict) -> None:
        self._commits.mark(Offsets.from_json_dict(end), self._ids)

    def reportLatestOffset(self) -> JsonDict | None:
        """The ends of the logs when the last trigger looked: the progress' `latestOffset`, for lag."""
        return None if self._log_ends is None else self._log_ends.to_json_dict()

    def stop(self) -> None:
        self._commits.close()

    # -- what must not go unsaid --------------------------------------------------------------

    def _judge_missing(
        self, begin: Offsets, partitions: Mapping[TopicPartition, bytes], recreated: Collection[str]
    ) -> None:
        missing = sorted(key for key in begin.ends if key not in partitions and key[0] not in recreated)
        if missing:
            self._lose(
                PARTITIONS_DELETED,
                f"{', '.join(name(key) for key in missing[:10])} "
                f"{'is' if len(missing) == 1 else 'are'} not there any more: the topic was deleted (or the query "
                "subscribes to less than its checkpoint knows); read was "
                f"{', '.join(f'{name(key)} up to offset {begin.ends[key]}' for key in missing[:10])}",
                missing[0],
            )

    def _judge_stale(self, stale: set[TopicPartition]) -> None:
        """A leader that was replaced and does not know it has no news; metadata is looked up anew by each trigger."""
        if new := sorted(stale - self._stale):
            log.warning(
                "%s: the broker that leads there has been replaced by one that was read from already, and does not "
                "know it yet; until it does, nothing new is read there",
                ", ".join(name(key) for key in new[:10]),
            )
        self._stale = stale

    def _judge_recreated(self, begin: Offsets, ids: Mapping[str, bytes]) -> set[str]:
        recreated = {topic for topic, known in begin.ids.items() if topic in ids and ids[topic] != known}
        for topic in sorted(recreated):
            key = next(key for key in sorted(begin.ends) if key[0] == topic)
            what = (
                f"topic {topic} was deleted and created again: its id was {topic_id_text(begin.ids[topic])}, now it is "
                f"{topic_id_text(ids[topic])}; offsets up to {begin.ends[key]} of {name(key)} belonged to the old one"
            )
            if self._options.on_topic_recreated == "fail":
                remedy = (
                    "Nothing is read. To read the new one from its beginning, set onTopicRecreated=earliest (it is the "
                    "default with failOnDataLoss=false)"
                )
                raise DataLoss(named(PARTITION_OFFSET_CHANGED, f"{what}. {remedy}"), topic=topic, partition=key[1])
            log.warning("%s (onTopicRecreated=earliest: the new one is read from its beginning)", what)
        return recreated

    def _without_recreated(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Without those of a topic that has been made anew since a batch was planned that is now to be replayed."""
        client, deadline = client_for(self._options.client), self._trigger_deadline()
        found = client.metadata({one.topic for one in ranges}, deadline).topics
        kept = []
        for one in ranges:
            now = found[one.topic].topic_id if one.topic in found else NO_TOPIC_ID
            if NO_TOPIC_ID in (now, one.topic_id) or now == one.topic_id:
                kept.append(one)
            else:
                log.warning(
                    "topic %s was deleted and created again: %d offsets of %s from %d on, which are to be read again, "
                    "were the old one's and are skipped (onTopicRecreated=earliest)",
                    one.topic,
                    one.size,
                    name((one.topic, one.partition)),
                    one.from_offset,
                )
        return kept

    def _judge_shorter(
        self,
        begin: Offsets,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> dict[TopicPartition, int]:
        """Where to go on in logs that end before what was read: where other records than those begin (KIP-320)."""
        shorter = {}
        for key in sorted(key for key in ends if ends[key] < starts[key]):
            agreed = ends[key]
            if key in begin.epochs:
                known = end_of_epoch(client_for(self._options.client), *key, begin.epochs[key], deadline)
                agreed = agreed if known is None else min(known, agreed)
            self._lose(
                PARTITION_OFFSET_CHANGED,
                f"{name(key)} ends at offset {ends[key]}, but the query has read up to {starts[key]}: the log was "
                "truncated (unclean leader election), or the topic was deleted and created again. Offsets "
                f"{agreed} to {starts[key]} were read, and are others now, or none",
                key,
            )
            shorter[key] = agreed
        return shorter

    def _gone(
        self,
        begin: Offsets,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> dict[TopicPartition, int]:
        """Where to go on in logs that have lost what was to be read next.

        With `failOnDataLoss` nobody looks here, since a task that finds it stops the query.
        """
        behind = [key for key in begin.ends if key in ends and begin.ends[key] == starts[key] < ends[key]]
        earliest = log_starts(client_for(self._options.client), behind, deadline) if behind else {}
        return {key: min(earliest[key], ends[key]) for key in behind if earliest[key] > starts[key]}

    def _count_gone(self, ranges: list[OffsetRange]) -> dict[TopicPartition, int]:
        """What is missing of a batch that was planned by another run, and is to be replayed.

        So it is when a query has failed because of that, and goes on with `failOnDataLoss=false`. The tasks leave it
        out and log it; the next batch counts it, an empty one if need be. If nobody answers soon, it is not counted.
        """
        client, keys = client_for(self._options.client), {(one.topic, one.partition) for one in ranges}
        try:
            earliest = log_starts(client, keys, client.deadline(_COUNT_GONE_MS))
        except KafkaError as error:
            log.warning("what is missing of the batch that is replayed is not counted: %s", error)
            return {}
        gone: Counter[TopicPartition] = Counter()
        for one in ranges:
            key = (one.topic, one.partition)
            gone[key] += max(0, min(earliest[key], one.until_offset) - one.from_offset)
        return {key: count for key, count in gone.items() if count}

    def _say_gone(self, begin: Offsets, gone: Mapping[TopicPartition, int]) -> None:
        lost = [f"{begin.ends[key]} to {gone[key]} of {name(key)}" for key in sorted(gone)]
        log.warning(
            "offsets %s%s are not in the log any more: retention or DeleteRecords has removed them before they were "
            "read (failOnDataLoss=false: %d offsets are skipped)",
            ", ".join(lost[:10]),
            f" and of {len(lost) - 10} more partitions" if len(lost) > 10 else "",
            sum(offset - begin.ends[key] for key, offset in gone.items()),
        )

    def _judge_added(
        self, begin: Offsets, joined: Mapping[TopicPartition, int], recreated: Collection[str]
    ) -> dict[TopicPartition, int]:
        """A new partition of a topic that is read begins at 0, unless its first records are gone already: how many."""
        topics = {topic for topic, _ in begin.ends} - set(recreated)
        lost = {key: offset for key, offset in sorted(joined.items()) if offset and key[0] in topics}
        for key, offset in lost.items():
            self._lose(
                ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
                f"{name(key)} is new in this query, and its log begins at offset {offset}: retention or DeleteRecords "
                "has removed its first records before they were read",
                key,
            )
        return lost

    def _lose(self, error_class: str, what: str, key: TopicPartition) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                named(error_class, f"{what}. Nothing is read. To go on without it, set failOnDataLoss=false"),
                topic=key[0],
                partition=key[1],
            )
        log.warning("%s (failOnDataLoss=false: going on without it)", what)

    def _trigger_deadline(self) -> Deadline:
        """As long as Spark's connector would try: `fetchOffset.numRetries` times more than once."""
        return client_for(self._options.client).deadline(self._options.offsets_timeout_ms)
