"""Rules that are taken out of the product, one at a time; `broken` runs the scenarios that must find them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class DeliberateFault:
    """A rule that is taken out of the product.

    Attributes
    ----------
    scenario : str
        The scenario that must find it.
    module : str
        File of the product, relative to the checkout.
    before, after : str
        Text that the file has once, and its replacement.
    """

    scenario: str
    module: str
    before: str
    after: str

    def source(self) -> str:
        """Return the source of the module with the fault.

        Raises
        ------
        ValueError
            The text is not in the file once: the product has changed, and the fault must follow.
        """
        text = (ROOT / self.module).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.module} has {text.count(self.before)} times: {self.before}")
        return text.replace(self.before, self.after)


CONSUMER = "protocol/consumer/"
SINK = "spark_kafka_source/sink/exactly_once/"
DRIVER = "spark_kafka_source/driver/"

FAULTS = {
    # -- members of a group ---------------------------------------------------------------------------
    "a commit is three offsets too far": DeliberateFault(
        "group_members",
        CONSUMER + "assigned_partitions.py",
        "key: to_commit(position)\n",
        "key: to_commit(Position(position.offset + 3))\n",
    ),
    "a poll drops a batch": DeliberateFault(
        "group_members",
        CONSUMER + "kafka_consumer.py",
        "            batches.append(read)\n",
        "            batches or batches.append(read)\n",
    ),
    "a member trusts its assignment after a suspension": DeliberateFault(
        "group_members",
        "protocol/group/membership/membership.py",
        "        if self._thread is not None and now_s - self._checked_s >= ",
        "        if False and now_s >= ",
    ),
    "a poll does not look whether partitions are still owned": DeliberateFault(
        "group_members",
        CONSUMER + "kafka_consumer.py",
        "        return self._membership.assignment_lost is None and self",
        "        return True or self",
    ),
    "a member keeps partitions that it must revoke": DeliberateFault(
        "group_members",
        "protocol/group/membership/consumer_member.py",
        "        return frozenset(key for key in self.owned if self._ids.get(key) != self.owned_topic_ids[key])",
        "        return NO_PARTITIONS",
    ),
    "a recreated topic is read before it is assigned": DeliberateFault(
        "group_members",
        CONSUMER + "assigned_partitions.py",
        "self._new_backoff, topic_ids.get(key, NO_TOPIC_ID))",
        "self._new_backoff, NO_TOPIC_ID)",
    ),
    "a recreated topic is read on": DeliberateFault(
        "group_members",
        "protocol/fetch/leaders.py",
        "    if _is_recreated(snapshot.metadata, partition):\n",
        "    if False:\n",
    ),
    "an offset of a deleted topic is committed to the new one": DeliberateFault(
        "group_members",
        "protocol/group/commits/offset_manager.py",
        "to_send = offset.assumed_in(",
        "to_send = offset.in_topic(",
    ),
    "a position is committed without its leader epoch": DeliberateFault(
        "group_members",
        CONSUMER + "assigned_partitions.py",
        "key: to_commit(position)\n",
        "key: to_commit(Position(position.offset, topic_id=position.topic_id))\n",
    ),
    "a loss is not told": DeliberateFault(
        "group_members",
        CONSUMER + "assigned_partitions.py",
        '        log.warning("%s; reading continues at offset %d", loss, position.offset)\n',
        "",
    ),
    # -- handlers -------------------------------------------------------------------------------------
    "an unfinished record is committed": DeliberateFault(
        "group_handlers",
        "protocol/processing/offset_tracker.py",
        "            if (unfinished := batch.first_committable()) is not None:\n                return unfinished\n",
        "            batch.first_committable()\n",
    ),
    "records of a key are in different lanes": DeliberateFault(
        "group_handlers",
        "protocol/processing/lanes.py",
        "        lane = np.where(valid(keys), lane, spread)\n    return lane\n",
        "        lane = np.where(valid(keys), lane, spread)\n    return (np.arange(len(keys)) + turn) % lanes\n",
    ),
    "a position without records is not committed": DeliberateFault(
        "group_handlers",
        "protocol/processing/consumer_loop.py",
        "            partitions[key].tracker.set_position(positions[key])\n",
        "",
    ),
    "a dead letter has no key": DeliberateFault(
        "group_handlers",
        "protocol/processing/processor.py",
        "            key=message.key,\n",
        "",
    ),
    "a dead letter loses the headers of its record": DeliberateFault(
        "group_handlers",
        "protocol/processing/failures.py",
        "        *(message.headers or ()),\n",
        "",
    ),
    "partitions are released while their handlers run": DeliberateFault(
        "group_handlers",
        "protocol/processing/consumer_loop.py",
        "        return self._pool.wait(lanes, deadline)\n",
        "        return True\n",
    ),
    # -- Ctrl-C ---------------------------------------------------------------------------------------
    "an interrupted poll does not seek back": DeliberateFault(
        "interrupted_notebook",
        CONSUMER + "assigned_partitions.py",
        "        if not partition.has_lost_topic:\n            partition.seek(position)\n",
        "",
    ),
    "Ctrl-C while rows are put into batches": DeliberateFault(
        "interrupted_notebook",
        "protocol/producer/producer.py",
        "    @deferred\n    def flush(",
        "    def flush(",
    ),
    "commit_sync commits nothing": DeliberateFault(
        "interrupted_notebook",
        CONSUMER + "kafka_consumer.py",
        "        self._commit(present, self._client.deadline(timeout_ms), partition_timeout_s=limit_s)\n",
        "",
    ),
    # -- producers ------------------------------------------------------------------------------------
    "a retried batch has new sequence numbers": DeliberateFault(
        "idempotent_producer",
        "protocol/producer/partition_producer.py",
        "        if batch.base_sequence == NO_SEQUENCE:\n",
        "        if True:\n",
    ),
    "a batch behind a failed one is sent first": DeliberateFault(
        "idempotent_producer",
        "protocol/producer/partition_producer.py",
        "        batch = self._queue[self.in_flight]\n",
        "        batch = self._queue[-1] if not self.in_flight else self._queue[self.in_flight]\n",
    ),
    "the halves of a split batch have the first offsets": DeliberateFault(
        "idempotent_producer",
        "protocol/producer/partition_producer.py",
        "                first_row=batch.first_row + first,\n",
        "                first_row=batch.first_row,\n",
    ),
    "keys do not choose the partition": DeliberateFault(
        "idempotent_producer",
        "protocol/producer/partition_choice.py",
        'keys = rows.column("key") if "key" in rows.schema.names else None',
        "keys = None",
    ),
    # -- transactions ---------------------------------------------------------------------------------
    "sequence numbers continue in a new epoch": DeliberateFault(
        "transactions",
        "protocol/producer/transaction_session.py",
        "            reset_sequences()\n",
        "",
    ),
    "an abort is sent for a commit": DeliberateFault(
        "transactions",
        "protocol/transaction/end_transaction.py",
        '"committed": self._commit}',
        '"committed": False}',
    ),
    "records of aborted transactions are read": DeliberateFault(
        "transactions",
        "protocol/fetch/fetch_position.py",
        'self.aborted_transactions if config.isolation_level == "read_committed" else None,',
        "[],",
    ),
    "every second transaction has no offsets": DeliberateFault(
        "transactions",
        "protocol/producer/transactional_producer.py",
        "if checked := as_committed_offsets(offsets):",
        "if (checked := as_committed_offsets(offsets)) and next(iter(checked.values())).offset % 2 == 0:",
    ),
    "a refused commit counts as done": DeliberateFault(
        "transactions",
        "protocol/producer/transaction_session.py",
        "            if not done and (commit or not nothing_open):\n",
        "            if not done and not commit and not nothing_open:\n",
    ),
    "an unknown outcome counts as a refusal": DeliberateFault(
        "transactions",
        "protocol/producer/transaction_session.py",
        "        unknown = ended.outcome is TransactionOutcome.UNKNOWN\n",
        "        unknown = False\n",
    ),
    # -- assigned partitions --------------------------------------------------------------------------
    "a truncated log is read on": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/fetch_position.py",
        '        if diverging["end_offset"] < self.offset:\n',
        "        if False:\n",
    ),
    "a range does not name lost offsets": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/bounded_reader.py",
        "            self.skipped.append(skipped)\n",
        "            pass\n",
    ),
    "a range has a record beyond its end": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/bounded_reader.py",
        "self._columns, range_position.name, range_position.until_offset, row_filter",
        "self._columns, range_position.name, range_position.until_offset + 1, row_filter",
    ),
    "a refused position counts as lost": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/fetch_failures.py",
        "    if bounds.start <= offset <= bounds.latest.offset:\n",
        "    if False:\n",
    ),
    "a partition with records stays before others": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/fetch_schedule.py",
        "            buffers[buffer] = buffers.pop(buffer)\n",
        "            pass\n",
    ),
    "a request joins the partitions of a topic": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/fetch_request.py",
        "groupby(rows.items(), lambda item: item[0][0])",
        "groupby(\n"
        "            sorted(rows.items(), key=lambda item: [key[0] for key in rows].index(item[0][0])),\n"
        "            lambda item: item[0][0],\n"
        "        )",
    ),
    "a range with records stays before others": DeliberateFault(
        "assigned_consumer",
        "protocol/fetch/bounded_reader.py",
        "sorted(range_positions, key=lambda range_position: range_position.asked_at_s or 0.0)",
        "range_positions",
    ),
    "all records of a reply have the timestamp of the first batch": DeliberateFault(
        "assigned_consumer",
        "protocol/records/decode.py",
        "base.take(self.batch_of_row) + delta",
        "base.take(self.batch_of_row * 0) + delta",
    ),
    # -- a changing cluster ---------------------------------------------------------------------------
    "an acknowledged record has another offset": DeliberateFault(
        "changing_cluster",
        "protocol/producer/partition_producer.py",
        "        self._end(batch, BatchResult(base_offset, log_append_time_ms))\n",
        "        self._end(batch, BatchResult(base_offset + 1, log_append_time_ms))\n",
    ),
    "a list of topics has those of earlier lists": DeliberateFault(
        "changing_cluster",
        "protocol/admin/topics.py",
        "        snapshot = self._client.metadata(None, self._deadline(timeout_ms))\n",
        "        snapshot = self._client.metadata(None, self._deadline(timeout_ms))\n"
        "        self.__dict__.setdefault('listed', {}).update(snapshot.topics)\n"
        "        snapshot = type(snapshot)(**(vars(snapshot) | {'topics': self.listed}))\n",
    ),
    "a description has no leader epochs": DeliberateFault(
        "changing_cluster",
        "protocol/admin/topics.py",
        "topic.name, topic.topic_id_text, topic.is_internal, topic.partitions, entries",
        "topic.name, topic.topic_id_text, topic.is_internal,\n"
        "                {n: type(row)(**vars(row) | {'leader_epoch': 0}) for n, row in topic.partitions.items()},\n"
        "                entries",
    ),
    # -- the exactly-once copy ------------------------------------------------------------------------
    "offsets are committed without the member": DeliberateFault(
        "exactly_once_copy",
        "protocol/producer/transaction_session.py",
        "                member=group.member,\n",
        "",
    ),
    "a commit before the last records are written": DeliberateFault(
        "exactly_once_copy",
        "protocol/producer/transaction_session.py",
        "            flush()\n",
        "            pass\n",
    ),
    "offsets of an open transaction are not awaited": DeliberateFault(
        "exactly_once_copy",
        "protocol/group/commits/committed_offsets.py",
        "    require_stable: bool = True,\n",
        "    require_stable: bool = False,\n",
    ),
    "records are written without headers": DeliberateFault(
        "exactly_once_copy",
        "protocol/records/record_columns.py",
        '    if "headers" in names:\n',
        "    if False:\n",
    ),
    # -- the exactly-once sink ------------------------------------------------------------------------
    "no decision before the commit": DeliberateFault(
        "exactly_once_sink",
        SINK + "batch_commit.py",
        "            decide(client, prepared, batch, transaction_timeout_ms)\n",
        "            pass\n",
    ),
    "the driver does not look for closed transactions": DeliberateFault(
        "exactly_once_sink",
        SINK + "batch_commit.py",
        "    if open_transactions is None:\n        return []\n    ended",
        "    if True:\n        return []\n    ended",
    ),
    "a failed batch aborts decided transactions": DeliberateFault(
        "exactly_once_sink",
        SINK + "batch_commit.py",
        "    return set(candidates).difference(batch.query.identities(ledger.transactions))\n",
        "    return set(candidates)\n",
    ),
    "no second look at the ledger": DeliberateFault(
        "exactly_once_sink",
        SINK + "task_writer.py",
        "            require_current()\n            producer.begin_transaction()\n",
        "            producer.begin_transaction()\n",
    ),
    "a marker is never believed": DeliberateFault(
        "exactly_once_sink",
        SINK + "open_transactions.py",
        "        return ledger.marker_key in markers and markers[ledger.marker_key].offset > batch.batch_id\n",
        "        return False\n",
    ),
    "a marker is always believed": DeliberateFault(
        "exactly_once_sink",
        SINK + "open_transactions.py",
        "        return ledger.marker_key in markers and markers[ledger.marker_key].offset > batch.batch_id\n",
        "        return True\n",
    ),
    "an uncommitted batch counts as complete": DeliberateFault(
        "exactly_once_sink",
        SINK + "batch_commit.py",
        "    if uncommitted:\n",
        "    if False:\n",
    ),
    "a task of a decided batch writes again": DeliberateFault(
        "exactly_once_sink",
        SINK + "task_writer.py",
        "            if not commit_decided(client, batch, ledger, [task]):\n",
        "            if commit_decided(client, batch, ledger, [task]) is None:\n",
    ),
    "a takeover aborts what it has just committed": DeliberateFault(
        "exactly_once_sink",
        SINK + "takeover.py",
        "        end_transactions(client, decided, commit=True, deadline=deadline, maybe_ended=True)\n",
        "        end_transactions(client, decided, commit=False, deadline=deadline, maybe_ended=True)\n",
    ),
    # -- a Spark query --------------------------------------------------------------------------------
    "rows of a task are reversed": DeliberateFault(
        "spark_query",
        "spark_kafka_source/task/range_reader.py",
        "                if kept.num_rows:\n",
        "                kept = kept.take(list(range(kept.num_rows - 1, -1, -1)))\n                if kept.num_rows:\n",
    ),
    "the end of a batch is one offset too far": DeliberateFault(
        "spark_query",
        "spark_kafka_source/plan/backlog.py",
        "        ends = {key: Position(end, ",
        "        ends = {key: Position(end + (end > self.starts.get(key, end)), ",
    ),
    "a batch is committed before it is complete": DeliberateFault(
        "spark_query",
        DRIVER + "stream_reader.py",
        "        cluster_id = query.client.cluster_id or completed.cluster_id\n",
        "        cluster_id = query.client.cluster_id or completed.cluster_id\n"
        "        query.commits.mark(end, query.logs.assignment.after(end), query.member)\n",
    ),
    "the start of the first batch is lost": DeliberateFault(
        "spark_query",
        DRIVER + "replay.py",
        "    return Offsets({})\n\n\ndef new_partition_starts",
        "    from protocol.position import Position\n\n"
        "    starts = {key: Position(offset + 1) for key, offset in end.joined.items()}\n"
        "    return Offsets(starts)\n\n\ndef new_partition_starts",
    ),
    "an offset is planned without its leader epoch": DeliberateFault(
        "spark_query",
        "spark_kafka_source/plan/backlog.py",
        "            Offsets.at(ends),\n",
        "            Offsets.at({key: replace(end, leader_epoch=-1) for key, end in ends.items()}),\n",
    ),
    "a replayed batch ends earlier": DeliberateFault(
        "spark_query",
        DRIVER + "stream_reader.py",
        "        batch_end = query.offsets.parse(end)\n        if not",
        "        batch_end = query.offsets.parse(end)\n"
        "        if not query.running:\n"
        "            ends = {key: replace(p, offset=max(p.offset - 1, 0)) for key, p in batch_end.positions.items()}\n"
        "            batch_end = replace(batch_end, positions=ends)\n"
        "        if not",
    ),
    "the first lost offset is one too far": DeliberateFault(
        "spark_query",
        "protocol/fetch/fetch_failures.py",
        "    return InvalidPosition(refused, offset, Position(resume), reason, bounds=bounds)\n",
        "    return InvalidPosition(refused, offset + 1, Position(resume), reason, bounds=bounds)\n",
    ),
    "partitions are revoked without the last commit": DeliberateFault(
        "spark_query",
        DRIVER + "query_membership.py",
        "            if not revocation.lost:\n",
        "            if False:\n",
    ),
    "a standby member has read the topics of its start": DeliberateFault(
        "spark_query",
        DRIVER + "stream_reader.py",
        "_ResolvedStart(completed.to_json_dict(), completed, starting)",
        "_ResolvedStart(completed.to_json_dict(), replace(starting, positions={}), starting)",
    ),
    "a recreated topic is read from its start by a former owner": DeliberateFault(
        "spark_query",
        "spark_kafka_source/plan/backlog.py",
        "        return [key for key in partitions if key not in self.positions]\n",
        "        return [key for key in partitions if key not in self.positions or key[0] in self.recreated]\n",
    ),
    "one broker's word counts for a recreated topic": DeliberateFault(
        "spark_query",
        DRIVER + "trigger.py",
        "ids_at_brokers(suspected, self.deadline) if suspected else {}\n",
        "ids_at_brokers(suspected, self.deadline) if False else {}\n",
    ),
    "positions in the deleted topic count in the recreated one": DeliberateFault(
        "spark_query",
        "spark_kafka_source/plan/assignment.py",
        "        return {key: at for key, at in positions.items() if key not in outdated} if outdated else positions\n",
        "        return positions\n",
    ),
    "offsets in the deleted topic are committed in the recreated one": DeliberateFault(
        "spark_query",
        DRIVER + "group_commits.py",
        "                key: to_commit(position.assumed_in(readable[key]))\n"
        "                for key, position in assignment.positions(completed).items()\n",
        "                key: to_commit(position.in_topic(readable[key]))\n"
        "                for key, position in {**completed.positions, **assignment.starts}.items()\n",
    ),
    "a range is split with a gap": DeliberateFault(
        "spark_query",
        "spark_kafka_source/plan/ranges.py",
        "        from_offset = until_offset\n    return parts\n",
        "        from_offset = until_offset + (remaining == 2)\n    return parts\n",
    ),
}
"""Deliberate faults by name."""
