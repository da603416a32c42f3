"""What a streaming query keeps from one of Spark's calls to the next; what one trigger needs alone is in `trigger`.

Spark's calls in a run of a query, in one process on the driver, one after the other:

    prepareForTriggerAvailableNow()   once, with that trigger only: the run ends where the logs end now
    initialOffset()                   more than once, until the first batch is complete; after a restart, too
    partitions(start, end)            a replay, if the run before has left a batch that is not complete
    latestOffset(start, limit)        every trigger, idle ones too: the batch that ended at `start` is complete,
                                      so that is what is committed
      reportLatestOffset()            for the query's progress
      partitions(start, end)          if `latestOffset` gave another end
      commit(start)                   only when the next batch is planned, so never for the last one: a repetition
    stop()                            hardly ever: the process of a query that is stopped is killed (`at_sigterm`)

Before PySpark 4.2 the first and the fifth are missing, `latestOffset` has no arguments, and a run that goes on from a
checkpoint begins with `partitions(end, end)` of the last complete batch.
"""

from __future__ import annotations

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.log_offsets import ListedOffset
from protocol.consumer.log_samples import RecordSizes
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.driver.discovery import discover, retry_unknown_topics
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.idle_triggers import IdleTriggers
from spark_kafka_source.driver.query_membership import QueryMembership
from spark_kafka_source.driver.start_offsets import starting_offsets
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.offsets import STARTING_OFFSETS, Offsets, topic_ids


class QueryState:
    """Opens nothing when it is made.

    Attributes
    ----------
    membership : this query in its group; None if it is no member of one, and reads all that it subscribes to.
    idle : counts triggers that find nothing new.
    running : whether a trigger has begun: what is planned before that is a replay.
    target : where the logs ended when an `availableNow` run began; None with other triggers.
    planned_end : of the batch that `partitions` saw last: before PySpark 4.2 it is what is complete.
    replay_lacked : how many offsets a replayed batch lacked; the next batch that is planned counts them as skipped.
    logs : what the query may read, and what was seen of it, as of the last trigger; None before the first.
    last_batch_ms : when a trigger last did not wait for `minOffsetsPerTrigger`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.commits = GroupCommits(options)
        self.membership = QueryMembership(options, self.commits) if options.is_member else None
        self.record_sizes = RecordSizes(options.consumer)
        self.idle = IdleTriggers()
        self.running = False
        self.target: dict[TopicPartition, ListedOffset] | None = None
        self.planned_end = STARTING_OFFSETS
        self.replay_lacked: dict[TopicPartition, int] = {}
        self.logs: LogSnapshot | None = None
        self.last_batch_ms: float | None = None
        self._starting: Offsets | None = None

    @property
    def client(self) -> Client:
        return client_for(self.options.client)

    def deadline(self) -> Deadline:
        """Of one call. As long as Spark's connector would try: `fetchOffset.numRetries` times more than once."""
        return self.client.deadline(self.options.offsets_timeout_ms)

    @property
    def member(self) -> GroupMember:
        """Who commits."""
        return NO_MEMBER if self.membership is None else self.membership.member

    def starting_offsets(self, deadline: Deadline) -> Offsets:
        """Where the first batch begins; the answer stays the same. Raises as `latestOffset`."""
        if self._starting is None:

            def look() -> Offsets:
                partitions = discover(self.client, self.options, deadline)
                begins = starting_offsets(self.client, self.options, partitions, deadline)
                return Offsets(begins, ids=topic_ids(partitions))

            self._starting = retry_unknown_topics(self.client, look, deadline)
        return self._starting
