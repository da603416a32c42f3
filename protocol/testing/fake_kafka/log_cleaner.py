"""Retention and compaction of one log, as `LogManager` and `LogCleaner` do them, with each record batch a segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from protocol.records.batch_header import CONTROL, TRANSACTIONAL
from protocol.testing.fake_kafka.log import Log, LogBatch
from protocol.testing.fake_kafka.record_batches import Batch, Record, read_batch, write_batch


def clean(log: Log, config: Mapping[str, str], until: int, now_ms: int) -> None:
    """Delete and compact records before the offset `until`, as the topic's `cleanup.policy` says."""
    policies = config["cleanup.policy"].split(",")
    if "delete" in policies:
        _delete_old(log, int(config["retention.ms"]), int(config["retention.bytes"]), until, now_ms)
    if "compact" in policies:
        _compact(log, until, now_ms - int(config["delete.retention.ms"]))


def _delete_old(log: Log, retention_ms: int, retention_bytes: int, until: int, now_ms: int) -> None:
    """Move the log start offset past batches that are too old, or too many bytes before the end."""
    left_bytes, start = sum(len(batch.data) for batch in log.batches), log.start_offset
    for batch in log.batches:
        too_old = retention_ms >= 0 and batch.max_timestamp_ms < now_ms - retention_ms
        too_much = retention_bytes >= 0 and left_bytes - len(batch.data) >= retention_bytes
        if batch.last_offset >= until or not (too_old or too_much):
            break
        left_bytes, start = left_bytes - len(batch.data), batch.last_offset + 1
    if start > log.start_offset:
        log.delete_before(start)


def _compact(log: Log, until: int, tombstones_before_ms: int) -> None:
    """Keep the last record of each key, and tombstones with a later timestamp than `tombstones_before_ms`."""
    cleaned = [(batch, read_batch(batch.data)) for batch in log.batches if batch.last_offset < until]
    last_offsets = {
        record.key: read.base_offset + record.offset_delta
        for batch, read in cleaned
        if not batch.attributes & CONTROL and not _is_aborted(log, batch)
        for record in read.records
    }
    batches = []
    for batch, read in cleaned:
        if batch.attributes & CONTROL:
            batches.append(batch)
            continue
        records = [] if _is_aborted(log, batch) else list(_kept(read, last_offsets, tombstones_before_ms))
        if len(records) == len(read.records):
            batches.append(batch)
        elif records or batch.last_offset == until - 1:
            last_delta = batch.last_offset - batch.base_offset
            data = write_batch(replace(read, records=records, last_offset_delta=last_delta, count=None))
            batches.append(LogBatch.of(data).placed(batch.base_offset, batch.leader_epoch))
    log.batches = [*batches, *(batch for batch in log.batches if batch.last_offset >= until)]


def _kept(read: Batch, last_offsets: Mapping[bytes | None, int], tombstones_before_ms: int) -> Iterable[Record]:
    for record in read.records:
        old_tombstone = record.value is None and read.first_timestamp + record.timestamp_delta < tombstones_before_ms
        if last_offsets[record.key] == read.base_offset + record.offset_delta and not old_tombstone:
            yield record


def _is_aborted(log: Log, batch: LogBatch) -> bool:
    return bool(batch.attributes & TRANSACTIONAL) and any(
        transaction.producer_id == batch.producer_id
        and transaction.first_offset <= batch.base_offset < transaction.last_offset
        for transaction in log.aborted
    )
