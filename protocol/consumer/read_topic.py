"""Read all records of a topic, up to its present end, into one Arrow table."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.range import Range
from protocol.consumer.range_consumer import RangeConsumer
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.records.decode import ALL_COLUMNS, SCHEMA

_PLACE = pa.schema([("topic", pa.dictionary(pa.int32(), pa.string())), ("partition", pa.int32())])


def read_topic(
    client: Client, topic: str, config: ConsumerConfig | None = None, *, columns: Collection[str] = ALL_COLUMNS
) -> pa.Table:
    """Read all partitions of a topic, from their log start offsets to the end offsets at the time of the call.

    Records that arrive later are not read, so the call ends on a live topic, too. The table is held in memory:
    `RangeConsumer` yields the same records batch by batch.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    topic : str
        Name of the topic.
    config : ConsumerConfig, optional
        With `isolation_level="read_committed"` a partition ends at its last stable offset.
    columns : collection of str
        Columns of a record: key, value, offset, timestamp_ms, timestamp_type, headers.

    Returns
    -------
    pa.Table
        `topic` (a dictionary), `partition` (int32) and `columns`, in the order of partitions and offsets.

    Raises
    ------
    TopicUnknown
        Brokers have said for 10 s that they do not know the topic.
    DataLoss
        Records were deleted, by retention for example, before they were read.
    DeadlineExceeded
        No broker has answered in time.
    """
    config, deadline = config or ConsumerConfig(), client.deadline()
    known = client.retrying(f"Metadata of {topic}", lambda: client.topic(topic, deadline), deadline, topics=[topic])
    keys = [(topic, partition) for partition in sorted(known.partitions)]
    begins = list_offsets(client, dict.fromkeys(keys, EARLIEST), deadline=deadline)
    ends = list_offsets(client, dict.fromkeys(keys, LATEST), isolation_level=config.isolation_level, deadline=deadline)
    ranges = [
        Range(*key, begins[key].offset, ends[key].offset, known.topic_id, until_epoch=ends[key].leader_epoch)
        for key in keys
        if begins[key].offset < ends[key].offset
    ]
    found: dict[Range, list[pa.RecordBatch]] = {each: [] for each in ranges}
    for each, batch in RangeConsumer(client, config, ranges, columns=columns):
        found[each].append(_with_place(each, batch))
    schema = pa.schema([*_PLACE, *(field for field in SCHEMA if field.name in columns)])
    return pa.Table.from_batches([batch for batches in found.values() for batch in batches], schema)


def _with_place(each: Range, batch: pa.RecordBatch) -> pa.RecordBatch:
    count = batch.num_rows
    topic = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([each.topic]))
    partition = pa.repeat(pa.scalar(each.partition, pa.int32()), count)
    return pa.RecordBatch.from_arrays([topic, partition, *batch.columns], [*_PLACE.names, *batch.schema.names])
