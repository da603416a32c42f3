"""The state of a streaming query between Spark's calls; the state of one trigger is in `trigger`.

Spark's calls during a run, sequential, in one process on the driver:

    prepareForTriggerAvailableNow()   once, only with that trigger: the run ends at the current log end offsets
    initialOffset()                   repeatedly, until the first batch is complete; after a restart, too
    partitions(start, end)            a replay, if the previous run left an incomplete batch
    latestOffset(start, limit)        every trigger, also idle ones: the batch that ended at `start` is complete,
                                      so `start` is committed
      reportLatestOffset()            for the query's progress
      partitions(start, end)          if `latestOffset` returned a new end
      commit(start)                   only when the next batch is planned, so never for the last batch; redundant
    stop()                            rarely: Spark kills the process of a stopped query (`at_sigterm`)

Before PySpark 4.2 `prepareForTriggerAvailableNow` and `reportLatestOffset` do not exist, `latestOffset` has no
arguments, and a run that resumes from a checkpoint begins with `partitions(end, end)` of the last complete batch.
"""

from __future__ import annotations

from collections.abc import Set

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.base.once import log_once
from protocol.cluster.client import Client
from protocol.errors import ConfigurationError
from protocol.fetch.log_offsets import ListedOffset
from protocol.fetch.log_samples import RecordSizes
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import TopicPartition
from protocol.position import Position
from spark_kafka_source.driver.discovery import (
    partition_filter,
    partitions_of_new_query,
    retry_unknown_topics,
    subscription,
)
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.query_membership import QueryMembership
from spark_kafka_source.driver.start_offsets import starting_offsets
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.offsets import STARTING_OFFSETS, Offsets, OffsetsParser, topic_ids
from spark_kafka_source.process_state import PROCESS

# A trigger is busy from this processor time on, and from this share of the time since the previous trigger's end.
_BUSY_CPU_S = 0.05
_BUSY_SHARE = 0.25
_WARN_AFTER_TRIGGERS = 50


class QueryState:
    """The state of one query. The constructor opens no connection.

    `membership`: None: the query is not a group member, and reads all subscribed partitions.
    `running`: True once a trigger has begun; a batch planned before is a replay.
    `target`: log end offsets at the start of an `availableNow` run; None with other triggers.
    `planned_end`: end of the last batch passed to `partitions`: the complete batch before PySpark 4.2.
    `replay_lost`: number of offsets that a replayed batch lacked; the next planned batch counts them as skipped.
    `logs`: the logs in the last trigger; None before the first one.
    `confirmed`: positions that leaders elected later have confirmed; each such leader gets one request.
    `suspected`: topics about which several brokers were asked, and that are awaited: the next trigger asks again.
    `last_batch_ms`: time of the last trigger that did not wait for `minOffsetsPerTrigger`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.commits = GroupCommits(options)
        self.membership = QueryMembership(options, self.commits) if options.is_member else None
        self.record_sizes = RecordSizes(options.consumer)
        self.idle = IdleTriggers()
        self.offsets = OffsetsParser()
        self.running = False
        self.target: dict[TopicPartition, ListedOffset] | None = None
        self.planned_end = STARTING_OFFSETS
        self.replay_lost: dict[TopicPartition, int] = {}
        self.logs: LogSnapshot | None = None
        self.confirmed: dict[TopicPartition, Position] = {}
        self.suspected: Set[str] = frozenset()
        self.last_batch_ms: float | None = None
        self._starting: Offsets | None = None

    @property
    def client(self) -> Client:
        """The process's client for these options."""
        return PROCESS.client(self.options.client)

    def deadline(self) -> Deadline:
        """Return the deadline of one call: as long as Spark's connector retries (`fetchOffset.numRetries`)."""
        return self.client.deadline(self.options.offsets_timeout_ms)

    def require_own_checkpoint(self, offsets: Offsets, deadline: Deadline) -> None:
        """Raise `ConfigurationError` if the checkpoint has another cluster, other schema versions or only other topics.

        With `failOnDataLoss=false`, the first trigger warns of other topics.
        """
        is_own = any(map(partition_filter(self.options), offsets.ends))
        if offsets.ends and not is_own and self.options.fail_on_data_loss:
            raise ConfigurationError(
                f"The checkpoint belongs to another query: it has offsets of "
                f"{listed(sorted({topic for topic, _ in offsets.ends}))}, and this query subscribes to "
                f"{subscription(self.options)}. Nothing is read or committed. Use the checkpointLocation that belongs "
                "to this query, or a new one"
            )
        if offsets.cluster_id is not None:
            self.client.brokers(deadline)
            servers = listed([f"{host}:{port}" for host, port in self.client.config.bootstrap_servers], separator=",")
            offsets.require_cluster(self.client.cluster_id, servers)
        if offsets.schemas:
            from spark_kafka_source.driver.reader_schemas import require_same_versions

            require_same_versions(self.options, offsets.schemas)

    @property
    def member(self) -> GroupMember:
        """The member that commits."""
        return NO_MEMBER if self.membership is None else self.membership.member

    def starting_offsets(self, deadline: Deadline) -> Offsets:
        """Return the start of the first batch, resolved once. Raises as `latestOffset`."""
        if self._starting is None:

            def find() -> Offsets:
                partitions = partitions_of_new_query(self.client, self.options, deadline)
                starts = starting_offsets(self.client, self.options, partitions, deadline)
                positions = {key: start.assumed_in(partitions[key]) for key, start in starts.items()}
                return Offsets(positions, topic_ids(partitions))

            self._starting = retry_unknown_topics(self.client, find, deadline)
        return self._starting


class IdleTriggers:
    """Counts triggers without new records that keep the driver busy, and warns once."""

    def __init__(self) -> None:
        self._busy = 0
        self._ended_s = float("-inf")

    def ended(self, *, idle: bool, ended_s: float, cpu_s: float, partitions: int) -> None:
        """Record a trigger.

        `idle`: True if it found no new records.
        `ended_s`: monotonic time of its end.
        `cpu_s`: processor time of its thread.
        `partitions`: for the warning.
        """
        busy = cpu_s >= max(_BUSY_CPU_S, _BUSY_SHARE * (ended_s - self._ended_s))
        self._ended_s = ended_s
        # One slow reply does not reset the count.
        self._busy = max(0, self._busy + (1 if busy else -1)) if idle else 0
        if self._busy == _WARN_AFTER_TRIGGERS:
            log_once(
                f"this query checks {partitions} partitions for new records without a pause, and each check takes "
                f"{cpu_s * 1000:.0f} ms of processor time on the driver: set an interval, as in "
                "trigger(processingTime='1 second')"
            )
