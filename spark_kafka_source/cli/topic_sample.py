"""Statistics of a topic's partitions from their latest records. Used by `pykafka topics analyze`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from protocol.admin.admin import Admin
from protocol.errors import AdminFailed, UnsupportedVersion
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.cli.connection import Cluster
from spark_kafka_source.cli.positions import list_ends

COLUMNS = (
    "topic",
    "partition",
    "records",
    "bytes",
    "first_timestamp",
    "last_timestamp",
    "records_per_s",
    "bytes_per_record",
    "null_keys",
    "keys",
    "top_key_share",
)


def sample_partitions(cluster: Cluster, name: str, last: int) -> list[tuple[Any, ...]]:
    """Read the last records of each partition; return a row of `COLUMNS` per partition.

    The number of records is the difference of offsets: with compaction or transactions the log has fewer.
    """
    admin = Admin(cluster.client)
    described = admin.describe_topics([name], timeout_ms=cluster.left_ms)[name]
    keys = [(name, number) for number in sorted(described.partitions)]
    logs = list_ends(cluster.client, cluster.consumer, keys, cluster.deadline)
    begins, ends = logs.starts, {key: end.offset for key, end in logs.ends.items()}
    sizes = _sizes_on_disk(admin, cluster, keys, {key: described.partitions[key[1]].leader for key in keys})
    ranges = [Range(*key, max(begins[key], ends[key] - last), ends[key]) for key in keys]
    samples: dict[TopicPartition, list[pa.RecordBatch]] = {key: [] for key in keys}
    reader = BoundedReader(
        cluster.client,
        cluster.consumer,
        [source_range for source_range in ranges if source_range.size > 0],
        columns=["key", "value", "timestamp_ms"],
        poll_timeout_ms=cluster.left_ms,
    )
    for source_range, batch in reader:
        samples[source_range.topic_partition].append(_summary_columns(batch))
    return [(*key, ends[key] - begins[key], sizes.get(key), *_statistics(samples[key])) for key in keys]


def _sizes_on_disk(
    admin: Admin, cluster: Cluster, keys: list[TopicPartition], leaders: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the bytes on the leader's disk; nothing without the right to see them."""
    try:
        log_dirs = admin.describe_log_dirs(partitions=keys, timeout_ms=cluster.left_ms)
    except (AdminFailed, UnsupportedVersion):
        return {}
    return {
        key: replica.size_bytes
        for node_id, directories in log_dirs.items()
        for directory in directories.values()
        for key, replica in directory.replicas.items()
        if leaders.get(key) == node_id
    }


def _summary_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep keys, times and sizes, so that the values of a batch can be freed."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0).cast(pa.int64()) for name in ("key", "value")]
    arrays = [batch.column("key"), batch.column("timestamp_ms"), pc.add(*lengths)]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "timestamp_ms", "size_bytes"])


def _statistics(batches: list[pa.RecordBatch]) -> tuple[Any, ...]:
    if not batches or not (table := pa.Table.from_batches(batches)).num_rows:
        return (None,) * 7
    count, times = table.num_rows, table.column("timestamp_ms")
    first_ms, last_ms = pc.min(times).as_py(), pc.max(times).as_py()
    span_s = (last_ms - first_ms) / 1000
    counted = (
        table.select(["key"]).filter(pc.is_valid(table.column("key"))).group_by("key").aggregate([("key", "count")])
    )
    most = pc.max(counted.column("key_count")).as_py() or 0
    return (
        first_ms,
        last_ms,
        count / span_s if span_s > 0 else None,
        pc.sum(table.column("size_bytes")).as_py() / count,
        table.column("key").null_count,
        counted.num_rows,
        most / count if most else None,
    )
