"""One trigger: asks brokers what there is to read, and has the plan decide how far the next batch goes.

Runs on the driver, in `latestOffset`. What it learns and needs again it leaves in the `QueryState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from protocol.clock import Deadline
from protocol.consumer.leader_epochs import end_of_epoch
from protocol.errors import TopicUnknown
from spark_kafka_source.driver.discovery import claim_all, discover_present, retry_unknown_topics
from spark_kafka_source.driver.leaders import leaders
from spark_kafka_source.driver.query_state import QueryState
from spark_kafka_source.driver.start_offsets import high_watermarks, log_ends, log_starts
from spark_kafka_source.options.partitions import TopicPartition, name
from spark_kafka_source.plan import limits, losses
from spark_kafka_source.plan.backlog import Backlog, SeenLogs
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.spark_api import ReadLimit

# What record sizes are not learnt by then are taken from before.
_RECORD_SIZES_MS = 2_000


class Trigger:
    def __init__(
        self,
        query: QueryState,
        begin: Offsets,
        limit: ReadLimit | None,
        deadline: Deadline,
        starting: Mapping[TopicPartition, int],
    ) -> None:
        """`begin` is where the last batch ended; for the first one `starting` has where it begins."""
        self._query = query
        self._options = query.options
        self._client = query.client
        self._begin = begin
        self._limit = limit
        self._deadline = deadline
        self._starting = starting
        # What the query goes on without; said when the batch is planned.
        self._let_go: list[losses.Loss] = []

    def plan(self) -> Offsets | None:
        """The next batch's end, None when nothing is new. Commits `begin` as soon as the topics are known to be its."""
        backlog = retry_unknown_topics(self._client, self._look, self._deadline)
        if self._must_wait(backlog.size):
            return None
        end = backlog.batch(limits.end_offsets(backlog.starts, backlog.ends, self._max_offsets(backlog)))
        if end is None:
            return None
        losses.say(self._let_go)
        losses.say_gone(backlog.logs.positions, backlog.gone)
        self._query.replay_lacked = {}
        if self._options.max_input_partitions is not None:
            end = replace(end, leaders=leaders(self._client, end.ends, self._deadline))
        return end

    # -- what there is to read ----------------------------------------------------------------

    def _look(self) -> Backlog:
        """Raises `TopicUnknown` when a topic goes meanwhile."""
        self._let_go = []
        claims = claim_all(self._client, self._options, self._begin, self._starting, self._deadline)
        self._query.claims = claims
        self._query.commits.mark(self._begin, claims)
        logs = SeenLogs(self._begin, claims, log_ends(self._client, self._options, claims.owned, self._deadline))
        if self._options.consumer.isolation_level == "read_committed" and (known := logs.held_back()):
            last = high_watermarks(self._client, known, self._deadline, known_epochs=known)
            logs = replace(logs, high_watermarks=last)
        before, self._query.logs = self._query.logs, logs
        losses.say_stale(logs.stale - (before.stale if before else set()))
        self._let_go += losses.let_go(losses.recreated(logs), fail=self._options.fail_on_topic_recreated)
        self._let_go += losses.let_go(losses.deleted(logs), fail=self._options.fail_on_data_loss)
        return self._backlog(logs)

    def _backlog(self, logs: SeenLogs) -> Backlog:
        """What there is to read, after asking where it begins, and telling what is lost."""
        target, fail = self._query.target, self._options.fail_on_data_loss
        if target is not None:
            target.update(logs.late_targets(target))
        ends = logs.ends(target)
        begins = self._log_starts(logs.new(ends))
        added = losses.added(logs, begins)
        self._let_go += losses.let_go(added.values(), fail=fail)
        skipped = Counter(self._query.replay_lacked) + Counter({key: begins[key] for key in added})
        backlog = logs.backlog(ends, begins, skipped)
        agreed = self._agreed(backlog)
        ends = ends | {key: max(offset, logs.listed[key].offset) for key, offset in agreed.items()}
        backlog = replace(backlog, ends=ends, joined={**backlog.joined, **agreed})
        return backlog if fail else replace(backlog, gone=self._gone(backlog))

    def _agreed(self, backlog: Backlog) -> dict[TopicPartition, int]:
        """Where to go on in logs that end before what was read: where other records than those begin (KIP-320)."""
        shorter = backlog.shorter()
        now = discover_present(self._client, self._options, self._deadline) if shorter else {}
        agreed = {}
        for key in shorter:
            if now.get(key) != backlog.logs.claims.owned[key]:
                # By its name a leader is asked for a topic that was made anew since it was found, too.
                raise TopicUnknown(f"{name(key)} ends before what was read, and is of another topic by now")
            agreed[key] = end = backlog.ends[key]
            if (epoch := backlog.logs.epoch_before(key)) is not None:
                known = end_of_epoch(self._client, *key, epoch, self._deadline)
                agreed[key] = end if known is None else min(known, end)
            loss = losses.truncated(key, backlog.starts[key], end, agreed[key])
            self._let_go += losses.let_go([loss], fail=self._options.fail_on_data_loss)
        return agreed

    def _gone(self, backlog: Backlog) -> dict[TopicPartition, int]:
        """Where to go on in logs that have lost what was to be read next. Else a task finds that, and fails."""
        behind = backlog.continued()
        begins = self._log_starts(behind)
        return {key: min(begins[key], backlog.ends[key]) for key in behind if begins[key] > backlog.starts[key]}

    def _log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return log_starts(self._client, partitions, self._deadline)

    # -- how much of it -----------------------------------------------------------------------

    def _must_wait(self, new_offsets: int) -> bool:
        """`minOffsetsPerTrigger`; a run that reads what is there and ends has nothing to wait for."""
        if self._query.target is not None:
            return False
        now_ms = self._client.clock.now_s() * 1000
        wait = limits.must_wait(
            new_offsets,
            self._limit,
            min_offsets=self._options.min_offsets_per_trigger,
            max_trigger_delay_ms=self._options.max_trigger_delay_ms,
            now_ms=now_ms,
            last_batch_ms=self._query.last_batch_ms,
        )
        if not wait:
            self._query.last_batch_ms = now_ms
        return wait

    def _max_offsets(self, backlog: Backlog) -> int | None:
        """The stricter of `maxOffsetsPerTrigger` and `maxBytesPerTrigger`; None: all there are."""
        max_offsets = limits.max_offsets(self._limit, self._options.max_offsets_per_trigger)
        max_bytes = limits.max_bytes(self._limit, self._options.max_bytes_per_trigger)
        starts, ends = backlog.starts, backlog.ends
        behind = {key: starts[key] for key in ends if ends[key] > starts[key]}
        if max_bytes is None or not behind:
            return max_offsets
        record_sizes = self._query.record_sizes
        record_sizes.look(self._client, behind, self._deadline.at_most_ms(_RECORD_SIZES_MS))
        of_bytes = limits.offsets_of_bytes(starts, ends, record_sizes.of(behind), max_bytes)
        return min((most for most in (max_offsets, of_bytes) if most is not None), default=None)
