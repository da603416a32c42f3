"""Decode keys and values with a schema into columns. Invalid ones fail, become null, or are written as dead letters.

Runs in the executors' Python workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import DecodeFailed
from protocol.fetch.log_offsets import Range
from protocol.records.arrow_numpy import binaries, take_rows, to_arrow, to_numpy
from spark_kafka_source.options.selection import ERROR, RAW, VALUE_TYPE
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS

if TYPE_CHECKING:
    from protocol.filters.record_filter import Columns, Mask, RecordFilter
    from protocol.producer.producer import Producer
    from protocol.schemas.decoding import InvalidValue

log = logging.getLogger(__name__)

# The topic's max.message.bytes decides: the record is in a topic already, and may exceed a producer's default of 1 MiB.
_PRODUCER = {"max.request.size": 64 << 20}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CONSEQUENCES = {"null": "null in the rows", "dead-letter": "sent to the dead letter topic"}
_REMEDIES = {
    "onDecodeError": ". To read on with null for such a %s, set onDecodeError=null; to write such records to another "
    "topic, onDecodeError=dead-letter",
    "onUnknownType": ". To read on without records of other types, set onUnknownType=skip; with null for such a %s, "
    "onUnknownType=null; to write them to another topic, onUnknownType=dead-letter",
}


@dataclass
class _Problems:
    """The records of a batch that do not decode, or are of no type to read, by their rows.

    `errors`: rows to return, with the reason. `letters`: rows to write as dead letters. `skipped`: rows to leave out.
    """

    errors: dict[int, str] = field(default_factory=dict)
    letters: dict[int, str] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)

    def kept_rows(self, rows: int) -> npt.NDArray[np.int64] | None:
        """Return the rows to return; None: all."""
        dropped = self.letters.keys() | self.skipped
        return np.setdiff1d(np.arange(rows), list(dropped)) if dropped else None


class TaskDecoder:
    """Decodes the keys and values of one task."""

    def __init__(self, options: SourceOptions, record_filter: RecordFilter | None = None) -> None:
        self._decoders = {part: PROCESS.decoder(schema, options.registry, part) for part, schema in options.schemas}
        self._types = (
            None if options.type_schema is None else PROCESS.decoder(options.type_schema, options.registry, "value")
        )
        self._filter = record_filter if record_filter is not None and record_filter.decoded_columns else None
        self._filter_decoders = {
            part: PROCESS.decoder(schema, options.registry, part) for part, schema in options.condition_schemas
        }
        whole = {part for part, schema in options.schemas if not schema.fields}
        self._rows_have_fields = set(self._filter_decoders) <= whole
        self._keeps_most = False
        # Columns of the batch that `filtered` has returned, where it has decoded them for the rows as well.
        self._decoded: dict[str, pa.Array] = {}
        self._actions = {"onDecodeError": options.on_decode_error, "onUnknownType": options.on_unknown_type}
        self._client = PROCESS.client(options.client)
        self._dead_letters = DeadLetters(options)
        self._headers = options.schema_id_location == "header"
        self._wants_errors = bool({RAW, ERROR} & set(options.row_columns))
        self._wants_types = VALUE_TYPE in options.row_columns

    def filtered(self, batch: pa.RecordBatch, source_range: Range) -> pa.RecordBatch:
        """Return the records that the conditions on decoded keys and values, and on types, keep.

        `onDecodeError` applies to those that do not decode, or whose type cannot be determined: they fail, are judged
        as null, or become dead letters; `onUnknownType` to those of other types.

        Raises `DecodeFailed` if a key or a value is invalid, or of another type, and the option for it is fail;
        `FilterFailed` if the condition fails on a record.
        """
        if self._filter is None:
            return batch
        columns: dict[str, pa.Array] = {}
        if self._filter.reads_types:
            problems = _Problems()
            columns[VALUE_TYPE], invalid = self._type_names(batch)
            self._judge("value", batch, source_range, invalid, problems)
            rows = self._rows_where(self._filter.rows_of_types, batch, source_range, columns, problems)
            if rows is not None:
                batch, columns = batch.take(rows), _taken(columns, rows)
        headers = batch.column("headers") if self._headers else None
        problems = _Problems()
        decoded = self._decode_for_rows(batch, headers)
        columns.update(decoded)
        for part, decoder in self._filter_decoders.items():
            if part not in decoded:
                columns[part], invalid = decoder.decode(batch.column(part), headers)
                self._judge(part, batch, source_range, invalid, problems)
        rows = self._rows_where(self._filter.decoded_rows, batch, source_range, columns, problems)
        kept = batch if rows is None else batch.take(rows)
        self._decoded = decoded if rows is None else _taken(decoded, rows)
        self._keeps_most = kept.num_rows * 2 > batch.num_rows
        return kept

    def _rows_where(
        self,
        rows_where: Callable[[Columns, Range], Mask],
        batch: pa.RecordBatch,
        source_range: Range,
        columns: Mapping[str, pa.Array],
        problems: _Problems,
    ) -> pa.Array | None:
        """Return the rows that a part of the filter keeps, None: all; write the dead letters, which it does not see.

        `columns`: those that the records in `batch` were decoded to.
        """
        self._dead_letters.send(batch, source_range, problems.letters)
        columns = {**_columns(batch), **columns}
        valid_rows = problems.kept_rows(batch.num_rows)
        if valid_rows is None:
            kept = rows_where(columns, source_range)
            return None if kept.all() else to_arrow(np.flatnonzero(kept))
        kept = rows_where(_taken(columns, to_arrow(valid_rows)), source_range)
        return to_arrow(valid_rows[kept])

    def _type_names(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[InvalidValue]]:
        assert self._types is not None
        return self._types.type_names(batch.column("value"), batch.column("headers") if self._headers else None)

    def _decode_for_rows(self, batch: pa.RecordBatch, headers: pa.Array | None) -> dict[str, pa.Array]:
        """Decode once for the filter and the rows if most rows are kept; nothing if a value is invalid.

        An invalid field that the filter does not name must not matter for a row that it drops.
        """
        if not self._keeps_most or not self._rows_have_fields:
            return {}
        columns: dict[str, pa.Array] = {}
        for part in self._filter_decoders:
            columns[part], invalid = self._decoders[part].decode(batch.column(part), headers)
            if invalid:
                return {}
        return columns

    def decode(
        self, batch: pa.RecordBatch, source_range: Range
    ) -> tuple[dict[str, pa.Array], npt.NDArray[np.int64] | None]:
        """Return the decoded columns of a batch, and `valueType`, `_raw` and `_error` if the query selects them.

        Returns arrays by column, and the numbers of the rows to return; None for all rows. The others are dead letters,
        or skipped.
        Raises `DecodeFailed`: a key or a value is invalid, or of another type, and the option for it is fail.
        `RegistryFailed`: the registry did not return a schema.
        """
        headers = batch.column("headers") if self._headers else None
        columns: dict[str, pa.Array] = {}
        problems = _Problems()
        nulls: dict[str, set[int]] = {}
        decoded, self._decoded = self._decoded, {}
        for part, decoder in self._decoders.items():
            if part in decoded:
                columns[part] = decoded[part]
                continue
            columns[part], invalid = decoder.decode(batch.column(part), headers)
            self._judge(part, batch, source_range, invalid, problems)
            nulls[part] = {failure.row for failure in invalid}
        problems.skipped |= self._dropped_by_nulls(batch, source_range, nulls, problems)
        if self._wants_types:
            columns[VALUE_TYPE], invalid = self._type_names(batch)
            if "value" not in self._decoders:  # else judged above
                self._judge("value", batch, source_range, invalid, problems)
        if self._wants_errors:
            rows = np.array(sorted(problems.errors), np.int64)
            texts = binaries([problems.errors[row].encode() for row in rows.tolist()])
            columns[ERROR] = _scattered(texts, rows, batch.num_rows).cast(pa.string())
            columns[RAW] = _scattered(batch.column("value").take(to_arrow(rows)), rows, batch.num_rows)
        self._dead_letters.send(batch, source_range, problems.letters)
        return columns, problems.kept_rows(batch.num_rows)

    def _dropped_by_nulls(
        self, batch: pa.RecordBatch, source_range: Range, nulls: Mapping[str, set[int]], problems: _Problems
    ) -> set[int]:
        """Return the rows that the filter has kept by its fields, and drops with null for a key or value.

        `nulls`: the rows of each part that do not decode to the fields of the rows.
        """
        rows = sorted(set().union(*nulls.values()) - problems.letters.keys() - problems.skipped)
        if self._filter is None or not self._filter_decoders or not rows:
            return set()
        numbers = np.array(rows, np.int64)
        batch = batch.take(to_arrow(numbers))
        headers = batch.column("headers") if self._headers else None
        columns = _columns(batch)
        if self._filter.reads_types:
            columns[VALUE_TYPE], _ = self._type_names(batch)
        for part, decoder in self._filter_decoders.items():
            is_null = np.isin(numbers, list(nulls.get(part, ())))
            stored = take_rows(batch.column(part), np.where(is_null, -1, np.arange(len(rows))))
            columns[part], _ = decoder.decode(stored, headers)
        kept = self._filter.decoded_rows(columns, source_range)
        return set(numbers[~kept].tolist())

    def __enter__(self) -> TaskDecoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until the dead letters are acknowledged; drop them if the task has failed.

        Raises `KafkaError`: a dead letter was not acknowledged.
        """
        # Spark ends the iteration of a task whose rows suffice (LIMIT).
        if kind is None or kind is GeneratorExit:
            self._dead_letters.close()
        else:
            self._dead_letters.abort()

    def _judge(
        self,
        part: str,
        batch: pa.RecordBatch,
        source_range: Range,
        invalid: Sequence[InvalidValue],
        problems: _Problems,
    ) -> None:
        """Add to `problems` what the options say of values that were not decoded. Raises `DecodeFailed`."""
        for option, action in self._actions.items():
            failures = [failure for failure in invalid if failure.unknown_type == (option == "onUnknownType")]
            if not failures:
                continue
            reasons = {failure.row: f"{part}: {failure}" for failure in reversed(failures)}  # the first one of a row
            if action == "skip":
                problems.skipped |= reasons.keys()
                self._client.sensors.filtered[source_range.topic].record((self._client.clock.now_s(), len(reasons)))
                continue
            self._report(part, batch, source_range, failures, option)
            if action == "dead-letter":
                problems.letters = reasons | problems.letters
            elif option == "onDecodeError":
                problems.errors = reasons | problems.errors

    def _report(
        self, part: str, batch: pa.RecordBatch, source_range: Range, failures: list[InvalidValue], option: str
    ) -> None:
        from protocol.schemas.values import decode_failed

        error = decode_failed(source_range.topic, source_range.partition, part, batch.column("offset"), failures)
        action = self._actions[option]
        if action == "fail":
            error.message += _REMEDIES[option] % part
            raise error
        log.warning("%s (%d in this batch: %s)", error, len(failures), _CONSEQUENCES[action])


class DeadLetters:
    """Writes records of a task that do not decode to `deadLetterTopic`, as they were, with the reason in headers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._producer: Producer | None = None

    def send(self, batch: pa.RecordBatch, source_range: Range, errors: Mapping[int, str]) -> None:
        """Send the records of these rows; returns before they are acknowledged.

        Raises `KafkaError`: an earlier dead letter was not acknowledged.
        """
        if not errors:
            return
        from protocol.fetch.partition_consumer import messages_of
        from protocol.processing.failures import dead_letter_headers
        from protocol.producer.producer import Producer

        if self._producer is None:
            self._producer = Producer(PROCESS.client(self._options.client), _PRODUCER)
        topic = self._options.dead_letter_topic
        assert topic is not None
        rows = sorted(errors)
        letters = batch.take(to_arrow(np.array(rows, np.int64)))
        messages = messages_of(source_range.topic, source_range.partition, letters)
        headers = [
            [{"key": key, "value": value} for key, value in dead_letter_headers(message, DecodeFailed(errors[row]))]
            for row, message in zip(rows, messages, strict=True)
        ]
        times_ms = to_numpy(letters.column("timestamp_ms"))
        # `flush` reports failures of columns; those of single messages are reported by their futures alone.
        columns = {
            "key": letters.column("key"),
            "value": letters.column("value"),
            "headers": pa.array(headers, _HEADERS),
            "timestamp_ms": pa.array(times_ms, pa.int64(), mask=times_ms < 0),
        }
        self._producer.send_columns(topic, pa.record_batch(columns))

    def abort(self) -> None:
        """Drop what is not sent."""
        if self._producer is not None:
            self._producer.abort()

    def close(self) -> None:
        """Wait for the acknowledgements. Raises `KafkaError`."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            with producer:
                producer.flush()


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _taken(columns: Mapping[str, pa.Array], rows: pa.Array) -> dict[str, pa.Array]:
    return {name: column.take(rows) for name, column in columns.items()}


def _scattered(values: pa.Array, rows: npt.NDArray[np.int64], count: int) -> pa.Array:
    """Return a column of `count` rows that has the values in these rows, else null."""
    positions = np.full(count, -1, np.int64)
    positions[rows] = np.arange(len(rows))
    return take_rows(values, positions)
