"""Spark's calls for a streaming read. `query_state` describes their order and the state between them.

Runs on the driver, in one Python process per query; executors get a `RangeReader`. The constructor has no side effects,
since Spark also creates readers that it never uses: clients, threads and group checks start with the first
`latestOffset`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader

from protocol.base.clock import Deadline
from protocol.base.once import log_once
from protocol.errors import KafkaError
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import TopicPartition
from protocol.settings.property_kinds import MAX_INT64
from spark_kafka_source.driver import replay
from spark_kafka_source.driver.discovery import partitions_in_one_reply, require_dead_letter_topic, retry_unknown_topics
from spark_kafka_source.driver.group_commits import warn_if_offsets_differ
from spark_kafka_source.driver.query_state import QueryState
from spark_kafka_source.driver.start_offsets import log_end_offsets
from spark_kafka_source.driver.trigger import Trigger
from spark_kafka_source.error_messages import with_remedies
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.offsets import STARTING_OFFSETS, JsonDict, Offsets
from spark_kafka_source.plan.ranges import group_ranges, offset_ranges, pruned_ranges, unresolved
from spark_kafka_source.spark_api import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from spark_kafka_source.task.range_reader import RangePartition, RangeReader

_ONCE_WARNING = (
    "trigger(once=True) ends without committing its batch to group %s, since Spark does not tell a source that its "
    "last batch is complete; the next run commits it. Use trigger(availableNow=True), which commits what it has read"
)


class _ResolvedStart(NamedTuple):
    """The start of the next batch.

    `start`: in Spark's form; `latestOffset` returns it again if nothing is new.
    `completed`: end of the last batch; without offsets before a query's first batch.
    `starting`: start of a query's first batch; without offsets afterwards.
    """

    start: JsonDict
    completed: Offsets
    starting: Offsets


class KafkaStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query.

    `warnings`: warnings about the options, logged once when the query runs.
    """

    def __init__(self, options: SourceOptions, warnings: Sequence[str] = ()) -> None:
        super().__init__(options)
        self._warnings = warnings
        self.query = QueryState(options)
        """State of the query on the driver; not pickled."""

    @with_remedies()
    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current log end offsets: the query ends there."""
        client, options, deadline = self.query.client, self._options, self.query.deadline()

        def target() -> dict[TopicPartition, ListedOffset]:
            # A topic that is missing is compared later, with the offsets that the query starts from.
            return log_end_offsets(client, options, partitions_in_one_reply(client, options, deadline), deadline)

        self.query.target = retry_unknown_topics(client, target, deadline)

    def initialOffset(self) -> JsonDict:
        """Return a placeholder for `startingOffsets`, which the first `latestOffset` resolves.

        Spark does not store it in a checkpoint, and calls this again when a restarted query replays its first batch.
        By then `latest`, a group or a time may resolve differently, or no longer.
        """
        return STARTING_OFFSETS

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset`, except with the trigger `once`.

        With `once` it passes `ReadAllAvailable`. Without a limit this is a huge one, so that `latestOffset` recognises
        `once`.
        """
        return ReadMaxRows(self._options.max_offsets_per_trigger or MAX_INT64)

    @with_remedies()
    def latestOffset(self, start: JsonDict | None = None, limit: ReadLimit | None = None) -> JsonDict:
        """Commit `start`, whose batch is complete, and return the end of the next batch: `start` if nothing is new.

        A query's first batch is planned even without records, since its end contains the query's start offsets, unless
        the query is a group member without an assignment. PySpark before 4.2 passes no arguments: the batch of the
        last `partitions` call is complete.

        Raises `DataLoss`: a topic was deleted, recreated or truncated. `DeadlineExceeded`: no broker answered during
        all of `fetchOffset.numRetries`. `ConfigurationError`: at a query's start: offsets of another cluster, an
        unknown topic, `startingOffsets` that do not match, a group with live members.
        """
        for warning in self._warnings:
            log_once(warning)
        query, cpu_s = self.query, time.thread_time()
        start = query.planned_end if start is None else start
        deadline = query.deadline()
        if not query.running:
            self._begin_run(limit, deadline)
        start, completed, starting = self._resolve_start(start, deadline)
        query.running = True
        try:
            end = Trigger(query, completed, starting, limit, deadline).plan()
        except KafkaError:
            query.commits.await_commit()
            raise
        query.idle.ended(
            idle=end is None,
            ended_s=query.client.clock.now_s(),
            cpu_s=time.thread_time() - cpu_s,
            partitions=len(completed.ends),
        )
        if end is None and query.target is not None:
            query.commits.await_last_commit("the checkpoint has the offsets, and the next run commits them")
        else:
            query.commits.await_commit()
        if end is None:
            return start
        cluster_id = query.client.cluster_id or completed.cluster_id
        return replace(end, schemas=self._options.schema_versions, cluster_id=cluster_id).to_json_dict()

    def reportLatestOffset(self) -> JsonDict | None:
        """Return the log end offsets of the last trigger, and the group: the progress' `latestOffset`, for lag."""
        if self.query.logs is None:
            return None
        return replace(self.query.logs.log_end_offsets(), group=self.query.commits.group).to_json_dict()

    @with_remedies()
    def partitions(self, start: JsonDict, end: JsonDict) -> Sequence[RangePartition]:
        """Return the tasks of a batch. Also called first after a restart, for a replay.

        The tasks depend on the two offsets and the options only, so a replay has the same tasks.
        """
        query, options = self.query, self._options
        batch_end = query.offsets.parse(end)
        if not query.running:
            query.require_own_checkpoint(batch_end, query.deadline())
        batch_start = (
            replay.first_batch_start(query, batch_end) if start == STARTING_OFFSETS else query.offsets.parse(start)
        )
        missing = unresolved(batch_start, batch_end)
        ranges = offset_ranges(
            batch_start,
            batch_end,
            max_records=options.max_records_per_partition,
            min_partitions=options.min_partitions,
            fail_on_data_loss=options.fail_on_data_loss,
            earliest=replay.new_partition_starts(query, missing, batch_end) if missing else None,
        )
        if ranges and not query.running and not options.fail_on_data_loss:
            query.replay_lost = replay.count_lost(query, ranges)
        ranges = pruned_ranges(options.condition, ranges)
        query.planned_end = end
        return [
            RangePartition(group) for group in group_ranges(ranges, options.max_input_partitions, batch_end.leaders)
        ]

    def commit(self, end: JsonDict) -> None:
        """Mark the end of a complete batch for the commit."""
        if (logs := self.query.logs) is not None:
            completed = self.query.offsets.parse(end)
            # Spark may plan the next batch before this call.
            is_planned_already = completed == logs.completed
            assignment = logs.assignment if is_planned_already else logs.assignment.after(completed)
            self.query.commits.mark(completed, assignment, self.query.member)

    def stop(self) -> None:
        """Wait up to 1 s for the last commit, leave the group, and stop committing."""
        try:
            self.query.commits.await_commit_before_leaving()
            if self.query.membership is not None:
                self.query.membership.close()
        finally:
            self.query.commits.close()

    def _begin_run(self, limit: ReadLimit | None, deadline: Deadline) -> None:
        """Connect, check the dead letter topic and the group. Warns if the trigger `once` will not commit its batch."""
        query = self.query
        query.client.brokers(deadline)  # fails early for a wrong address
        require_dead_letter_topic(query.client, self._options, deadline)
        query.commits.start(deadline)
        if isinstance(limit, ReadAllAvailable) and query.commits.group is not None:
            log_once(_ONCE_WARNING % query.commits.group)

    def _resolve_start(self, start: JsonDict, deadline: Deadline) -> _ResolvedStart:
        query = self.query
        is_new, is_member = start == STARTING_OFFSETS, query.membership is not None
        completed = Offsets({}) if is_new else query.offsets.parse(start)
        if not query.running:
            query.require_own_checkpoint(completed, deadline)
        if is_new or (is_member and completed.precedes_first_batch):
            starting = query.starting_offsets(deadline)
            if is_member:
                # Without topic ids: topics may be recreated before the member gets its first partition.
                return _ResolvedStart(completed.to_json_dict(), completed, starting)
            return _ResolvedStart(starting.to_json_dict(), replace(starting, positions={}), starting)
        if not query.running and not is_member:
            warn_if_offsets_differ(query.client, self._options, completed, deadline)
        return _ResolvedStart(start, completed, starting=Offsets({}))
