"""Read ranges of a topic and write their records to topics, in columns; used by `pykafka copy` and `replay`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import KafkaError, UsageError
from protocol.kafka_terms import TopicPartition
from protocol.producer.accumulator import too_large_errors
from protocol.producer.producer import Producer
from protocol.producer.results import SentColumns
from protocol.records.encode import record_sizes
from protocol.records.record_columns import record_columns

_COPIED_COLUMNS = ("key", "value", "timestamp_ms", "headers")
READ_COLUMNS = (*_COPIED_COLUMNS, "offset")


@dataclass(frozen=True)
class TopicHeaders:
    """The headers that name the topic of a dead letter.

    `names`: headers with the name of the topic; the first that a record has applies.
    `default`: the topic of records without such a header; None leaves them out.
    `removed`: prefixes of headers to remove.
    """

    names: Sequence[str]
    default: str | None = None
    removed: Sequence[str] = ()

    def topics(self, batch: pa.RecordBatch) -> npt.NDArray[np.object_]:
        """Return the topic of each record; None for those left out."""
        full = np.full(batch.num_rows, self.default, np.object_)
        headers = batch.column("headers")
        rows, pairs = pc.list_parent_indices(headers), pc.list_flatten(headers)
        for name in reversed(self.names):
            mask = pc.and_(pc.equal(pairs.field("key"), name), pc.is_valid(pairs.field("value")))
            values = pairs.field("value").filter(mask).dictionary_encode()
            # Another encoding than UTF-8 is no topic's name; the brokers say so.
            topics = [name.decode(errors="replace") for name in values.dictionary.to_pylist()]
            full[rows.filter(mask).to_numpy()] = np.array(topics, np.object_)[values.indices.to_numpy()]
        return full

    def without_removed(self, headers: pa.Array) -> pa.Array:
        """Return the headers without those to remove."""
        if not self.removed:
            return headers
        rows, pairs = pc.list_parent_indices(headers), pc.list_flatten(headers)
        pattern = "^(" + "|".join(prefix.replace(".", r"\.") for prefix in self.removed) + ")"
        is_other = pc.invert(pc.match_substring_regex(pairs.field("key"), pattern))
        counts = np.bincount(rows.filter(is_other).to_numpy(), minlength=len(headers))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pairs.filter(is_other)).cast(headers.type)


@dataclass
class Copy:
    """The receiver of records that are written to one topic, or to those in their headers.

    `producer`: None counts only.
    `keeps_partition`: write to the partition of the same number.
    `limit`: number of records to copy.
    `limit_bytes`: `max.request.size` of the producer; a larger record ends the copy of its partition.
    `counts`: copied records by topic.
    `left_out`: records without a topic.
    `_sent`: calls of the producer that may not have a result yet, each with the source and the offsets of its rows.
    """

    producer: Producer | None
    target: str | TopicHeaders
    keeps_partition: bool = False
    limit: int | None = None
    limit_bytes: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    _sent: deque[tuple[SentColumns, TopicPartition, pa.Array]] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        """True if `limit` records were copied."""
        return self.limit is not None and self.counts.total() >= self.limit

    def take(self, key: TopicPartition, batch: pa.RecordBatch) -> None:
        """Copy a batch, up to the limit, or to one that cannot be written; raises `click.ClickException` for that."""
        if self.limit is not None:
            batch = batch.slice(0, self.limit - self.counts.total())
        copied = list(self._by_topic(batch))
        errors = self._too_large(copied) | self._circular(key[0], copied)
        end = min(errors, default=None)
        for topic, records in copied:
            if end is not None:
                records = records.filter(pc.less(records.column("offset"), end))
            self.counts[topic] += records.num_rows
            if self.producer is not None:
                partitions = np.full(records.num_rows, key[1], np.int32) if self.keeps_partition else None
                self._forget_written()
                sent = self.producer.send_columns(topic, records.select(_COPIED_COLUMNS), partitions)
                self._sent.append((sent, key, records.column("offset")))
        if end is not None:
            raise click.ClickException(f"{key[0]}-{key[1]}, offset {end}: {errors[end]}")

    def _forget_written(self) -> None:
        """Forget the calls whose records are written; raise the `KafkaError` of one whose records are not."""
        while self._sent and self._sent[0][0].done:
            for error in self._sent[0][0].errors().values():
                raise error
            self._sent.popleft()

    def source_of(self, error: KafkaError) -> str:
        """Return the source and the offset of the first record that was not written because of `error`; "" if none."""
        for sent, (topic, partition), offsets in self._sent:
            for row, refused in sent.errors().items() if sent.done else ():
                if refused is error:
                    return f"{topic}-{partition}, offset {offsets[row]}"
        return ""

    def _circular(self, source: str, copied: Iterable[tuple[str, pa.RecordBatch]]) -> dict[int, UsageError]:
        """Return an error for the first record whose headers name the topic that it is read from, by its offset."""
        return {
            records.column("offset")[0].as_py(): UsageError(
                f"its headers name the topic {source}, where each replay would write it again. Choose other headers "
                "with --topic-header, or start after it with --offset"
            )
            for topic, records in copied
            if topic == source and isinstance(self.target, TopicHeaders)
        }

    def _too_large(self, copied: Iterable[tuple[str, pa.RecordBatch]]) -> dict[int, UsageError]:
        """Return an error for each record that no request can contain, by its offset."""
        if self.limit_bytes is None:
            return {}
        errors: dict[int, UsageError] = {}
        for topic, records in copied:
            sizes = record_sizes(record_columns(records.select(_COPIED_COLUMNS), 0))
            refused = too_large_errors(topic, sizes, self.limit_bytes, with_row_number=False)
            errors |= {records.column("offset")[row].as_py(): error for row, error in refused.items()}
        return errors

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if isinstance(self.target, str):
            yield self.target, batch
            return
        topics = self.target.topics(batch)
        named = np.array([topic is not None for topic in topics], np.bool_)
        self.left_out += int((~named).sum())
        cleaned = batch.set_column(
            batch.schema.get_field_index("headers"), "headers", self.target.without_removed(batch.column("headers"))
        )
        for topic in sorted(set(topics[named])):
            yield topic, cleaned.filter(pa.array(topics == topic))
