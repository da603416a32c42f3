"""One trigger: fetch offsets from brokers, and plan the next batch. Runs on the driver, in `latestOffset`.

Results that later calls need are stored in the `QueryState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from protocol.base.clock import Deadline
from protocol.base.once import log_once
from protocol.errors import TopicUnknown
from protocol.fetch.list_offsets import ends_of_epochs
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import NO_TOPIC_ID, TopicIds, TopicPartition
from spark_kafka_source.driver.discovery import (
    leader_ids,
    partition_filter,
    partitions_of_running_query,
    retry_unknown_topics,
)
from spark_kafka_source.driver.query_state import QueryState
from spark_kafka_source.driver.start_offsets import high_watermarks, log_end_offsets, log_start_offsets
from spark_kafka_source.plan import data_loss, limits
from spark_kafka_source.plan.assignment import QueryAssignment, query_assignment, suspected_topics
from spark_kafka_source.plan.backlog import Backlog, LogSnapshot
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.spark_api import ReadLimit

# Partitions whose leader does not reply within this time keep the previous record size.
RECORD_SIZES_TIMEOUT_MS = 2_000


class _TopicSuspected(Exception):
    """A leader's reply contradicts the position: the topic may have been deleted or recreated."""

    def __init__(self, topics: Collection[str]) -> None:
        super().__init__(topics)
        self.topics = topics


@dataclass
class Trigger:
    """One trigger of a query.

    Losses are found in this order, each among the partitions without an earlier one: recreated topics, deleted
    partitions, new partitions without their first records, truncated logs, regrown logs, and records that retention has
    deleted. Partitions with a loss, except deleted ones, continue at `Backlog.joined` or `Backlog.advanced`, which is
    never after their end.

    `completed`: end of the last batch; without positions before the first one.
    `starting`: start of a query's first batch; empty afterwards.
    """

    query: QueryState
    completed: Offsets
    starting: Offsets
    limit: ReadLimit | None
    deadline: Deadline

    def __post_init__(self) -> None:
        self._client, self._options = self.query.client, self.query.options
        self._losses: list[data_loss.Loss] = []
        self._suspected: set[str] = set()

    def plan(self) -> Offsets | None:
        """Return the end of the next batch, None if nothing is new. Marks `completed` once topic ids are compared."""
        backlog = retry_unknown_topics(self._client, self._confirmed_backlog, self.deadline)
        if self._waits_for_more(backlog.size):
            return None
        end = backlog.batch(limits.end_offsets(backlog.starts, backlog.ends, self._max_offsets(backlog)))
        if end is None:
            return None
        data_loss.raise_or_warn(self._losses, fail=False)
        data_loss.warn_advanced(backlog.logs.positions, backlog.advanced)
        self.query.replay_lost = {}
        if self._options.max_input_partitions is not None:
            end = replace(end, leaders=leader_ids(self._client, end.ends, self.deadline))
        return end

    # -- unread records -------------------------------------------------------------------------

    def _confirmed_backlog(self) -> Backlog:
        """Return the backlog. Raises `TopicUnknown` if a topic is deleted meanwhile, or awaited by a run that needs it.

        Begins again if a reply contradicts a position, once for each topic: then several brokers say which topic exists
        now. The metadata may come from one that lags behind, and names the leader of another topic.
        """
        while True:
            try:
                return self._fetch_backlog()
            except _TopicSuspected as suspected:
                self._suspected.update(suspected.topics)

    def _suspect(self, topics: Iterable[str]) -> None:
        """Raise `_TopicSuspected` unless this trigger has asked brokers about the topics."""
        if unasked := set(topics) - self._suspected:
            raise _TopicSuspected(unasked)

    def _fetch_backlog(self) -> Backlog:
        logs = self._assigned_logs()
        if self.query.membership is not None and self.query.membership.assignment_lost:
            # Lost between the two requests, as after a suspend: the ends may include records of other members, and the
            # deadline may have passed.
            self.deadline = self.query.deadline()
            return retry_unknown_topics(self._client, lambda: self._compared(self._assigned_logs()), self.deadline)
        return self._compared(logs)

    def _compared(self, logs: LogSnapshot) -> Backlog:
        """Compare the logs with the positions, and return the backlog."""
        self._losses = []
        if self._options.consumer.isolation_level == "read_committed" and (ends := logs.ends_before_position()):
            watermarks = high_watermarks(self._client, ends, self.deadline, ends)
            logs = replace(logs, high_watermarks=watermarks)
        self._suspect(logs.shrunk_topics())
        self._handle_awaited(logs.assignment)
        previous_logs, self.query.logs = self.query.logs, logs
        data_loss.warn_stale(logs.stale - (previous_logs.stale if previous_logs else set()))
        self._raise_or_defer(data_loss.recreated(logs), fail=self._options.fail_on_topic_recreated)
        self._raise_or_defer(data_loss.deleted(logs, partition_filter(self._options)))
        return self._backlog(logs)

    def _assigned_logs(self) -> LogSnapshot:
        """Return the logs of the assigned partitions. Marks `completed` for the commit before offsets are requested.

        A member keeps its starting offsets before it is assigned partitions, which begin there. Start positions follow
        the decision which topics exist, and precede the mark, which stages the later of start and `completed`.
        """
        completed, starting, membership = self.completed, self.starting, self.query.membership
        read = {**starting.positions, **completed.positions} if starting.positions else completed.positions
        existing = partitions_of_running_query(self._client, self._options, read, self.deadline)
        is_available_now = self.query.target is not None
        if membership is None:
            assigned_ids: TopicIds = dict.fromkeys(existing, NO_TOPIC_ID)
        else:
            membership.keep_starting_offsets(starting)
            assigned_ids = membership.poll_assignment(
                existing, completed, available_now=is_available_now, deadline=self.deadline
            )
        suspected = suspected_topics(existing, assigned_ids, completed, self.query.suspected)
        if self._suspected:
            suspected |= self._suspected & {topic for topic, _ in existing}
        ids_at_brokers = self._client.ids_at_brokers(suspected, self.deadline) if suspected else {}
        assignment = query_assignment(existing, assigned_ids, completed, ids_at_brokers)
        self.query.suspected = suspected & assignment.awaited.keys()
        if membership is not None:
            assignment = membership.fetch_start_positions(assignment, assigned_ids, completed, self.deadline)
        elif starting.positions:
            assignment = replace(assignment, starts=starting.positions)
        self.query.commits.mark(completed, assignment, self.query.member)
        ends: dict[TopicPartition, ListedOffset] = {}
        try:
            log_end_offsets(self._client, self._options, assignment.readable, self.deadline, ends)
        except TopicUnknown:
            self._suspect(topic for topic, number in assignment.readable if (topic, number) not in ends)
            raise
        return LogSnapshot(completed, assignment, ends)

    def _handle_awaited(self, assignment: QueryAssignment) -> None:
        """Log the topics that are awaited. Raises `TopicUnknown` if the trigger must read all of them."""
        for topic, reason in assignment.awaited.items():
            log_once(f"topic {topic}: nothing is read from it for now: {reason}")
        # A first batch keeps the start of all partitions; those of a member wait in its membership.
        is_first = self.query.membership is None and self.starting.positions
        if self.query.target is not None or is_first:
            # A recreated topic ends the query anyway.
            fails = assignment.recreated(self.completed) if self._options.fail_on_topic_recreated else {}
            for topic in sorted(assignment.awaited.keys() - fails.keys()):
                raise TopicUnknown(f"topic {topic} cannot be read yet: {assignment.awaited[topic]}")

    def _backlog(self, logs: LogSnapshot) -> Backlog:
        """Return the backlog with its start offsets. Losses are raised or kept, as in `_raise_or_defer`."""
        target, fail = self.query.target, self._options.fail_on_data_loss
        if target is not None:
            target.update(logs.late_targets(target))  # before `ends`, which leaves out partitions without a target
        ends = logs.ends(target)
        log_starts = log_start_offsets(self._client, logs.new(ends), self.deadline)
        added = data_loss.added(logs, log_starts)
        self._raise_or_defer(added.values())
        skipped = Counter(self.query.replay_lost) + Counter({key: log_starts[key] for key in added})
        backlog = Backlog(logs, ends, logs.joined(ends, log_starts), skipped=skipped)
        divergent = self._divergent_offsets(backlog)
        ends = ends | {key: max(offset, logs.listed[key].offset) for key, offset in divergent.items()}
        backlog = replace(backlog, ends=ends, joined={**backlog.joined, **divergent})
        # With `fail`, the task raises this loss.
        return backlog if fail else replace(backlog, advanced=self._new_log_starts(backlog))

    def _divergent_offsets(self, backlog: Backlog) -> dict[TopicPartition, int]:
        """Return the offsets from which truncated logs may have other records than were read (KIP-320)."""
        truncated, positions = backlog.truncated(), backlog.logs.positions
        unconfirmed = backlog.logs.unconfirmed(self.query.confirmed)
        compared = {key: positions[key] for key in [*truncated, *unconfirmed] if key in positions}
        epoch_ends = ends_of_epochs(self._client, compared, self.deadline)
        divergent = {}
        for key in truncated:
            end = backlog.ends[key]
            divergent[key] = min(end, epoch_ends.get(key, end))
            self._raise_or_defer([data_loss.truncated(key, backlog.starts[key], end, divergent[key])])
        regrown = sorted(key for key in epoch_ends.keys() - divergent.keys() if epoch_ends[key] < positions[key].offset)
        self._suspect(topic for topic, _ in regrown)
        for key in regrown:
            divergent[key] = epoch_ends[key]
            self._raise_or_defer([data_loss.regrown(key, positions[key], epoch_ends[key])])
        self.query.confirmed |= {key: position for key, position in unconfirmed.items() if key not in divergent}
        return divergent

    def _new_log_starts(self, backlog: Backlog) -> dict[TopicPartition, int]:
        """Return the log start offsets of logs that no longer have the position, at which a task would fail."""
        unread = backlog.continued()
        log_starts = log_start_offsets(self._client, unread, self.deadline)
        return {key: min(log_starts[key], backlog.ends[key]) for key in unread if log_starts[key] > backlog.starts[key]}

    def _raise_or_defer(self, losses: Iterable[data_loss.Loss], *, fail: bool | None = None) -> None:
        """Raise losses if `fail` (default: `failOnDataLoss`), otherwise keep them for later warnings."""
        fails = self._options.fail_on_data_loss if fail is None else fail
        if fails:
            data_loss.raise_or_warn(losses, fail=True)
        self._losses += losses

    # -- limits ---------------------------------------------------------------------------------

    def _waits_for_more(self, new_offsets: int) -> bool:
        """Return True if `minOffsetsPerTrigger` is not reached; never in an `availableNow` run, or with losses."""
        if self.query.target is not None:
            return False
        now_ms = self._client.clock.now_s() * 1000
        # A batch without what is lost ends the search for it, which would delay each trigger by up to 10 s.
        wait = not self._losses and limits.must_wait(
            new_offsets,
            self.limit,
            min_offsets=self._options.min_offsets_per_trigger,
            max_trigger_delay_ms=self._options.max_trigger_delay_ms,
            now_ms=now_ms,
            last_batch_ms=self.query.last_batch_ms,
        )
        if not wait:
            self.query.last_batch_ms = now_ms
        return wait

    def _max_offsets(self, backlog: Backlog) -> int | None:
        """Return the stricter of `maxOffsetsPerTrigger` and `maxBytesPerTrigger`; None: no limit."""
        max_offsets = limits.max_offsets(self.limit, self._options.max_offsets_per_trigger)
        max_bytes = limits.max_bytes(self.limit, self._options.max_bytes_per_trigger)
        starts, ends = backlog.starts, backlog.ends
        unread = {key: starts[key] for key in ends if ends[key] > starts[key]}
        if max_bytes is None or not unread:
            return max_offsets
        record_sizes = self.query.record_sizes
        record_sizes.sample(self._client, unread, self.deadline.at_most_ms(RECORD_SIZES_TIMEOUT_MS))
        offsets_for_bytes = limits.offsets_for_bytes(starts, ends, record_sizes.bytes_per_offset(unread), max_bytes)
        return min((most for most in (max_offsets, offsets_for_bytes) if most is not None), default=None)
