"""Decode keys and values with a schema into columns. Invalid ones fail, become null, or are written as dead letters.

Runs in the executors' Python workers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import DecodeFailed
from protocol.fetch.log_offsets import Range
from protocol.records.arrow_numpy import binaries, take_rows, to_arrow, to_numpy
from spark_kafka_source.options.selection import ERROR, RAW
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS

if TYPE_CHECKING:
    from protocol.filters.record_filter import RecordFilter
    from protocol.producer.producer import Producer
    from protocol.schemas.decoding import InvalidValue

log = logging.getLogger(__name__)

# The topic's max.message.bytes decides: the record is in a topic already, and may exceed a producer's default of 1 MiB.
_PRODUCER = {"max.request.size": 64 << 20}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CONSEQUENCES = {"null": "null in the rows", "dead-letter": "sent to the dead letter topic"}


class TaskDecoder:
    """Decodes the keys and values of one task."""

    def __init__(self, options: SourceOptions, record_filter: RecordFilter | None = None) -> None:
        self._decoders = {part: PROCESS.decoder(schema, options.registry, part) for part, schema in options.schemas}
        self._filter = record_filter if record_filter is not None and record_filter.decoded_columns else None
        self._filter_decoders = {
            part: PROCESS.decoder(schema, options.registry, part) for part, schema in options.condition_schemas
        }
        whole = {part for part, schema in options.schemas if not schema.fields}
        self._rows_have_fields = set(self._filter_decoders) <= whole
        self._keeps_most = False
        # Columns of the batch that `filtered` has returned, where it has decoded them for the rows as well.
        self._decoded: dict[str, pa.Array] = {}
        self._on_error = options.on_decode_error
        self._dead_letters = DeadLetters(options)
        self._headers = options.schema_id_location == "header"
        self._wants_errors = bool({RAW, ERROR} & set(options.row_columns))

    def filtered(self, batch: pa.RecordBatch, source_range: Range) -> pa.RecordBatch:
        """Return the records that the conditions on decoded keys and values keep.

        `onDecodeError` applies to those that do not decode: they fail, are judged as null, or become dead letters.

        Raises
        ------
        DecodeFailed
            A key or a value is invalid, and `onDecodeError` is fail.
        FilterFailed
            The condition fails on a record.
        """
        if self._filter is None:
            return batch
        headers = batch.column("headers") if self._headers else None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        errors: dict[int, str] = {}
        decoded = self._decode_for_rows(batch, headers)
        columns.update(decoded)
        for part, decoder in self._filter_decoders.items():
            if part in decoded:
                continue
            columns[part], invalid = decoder.decode(batch.column(part), headers)
            if invalid:
                self._report(part, batch, source_range, invalid)
                errors.update({failure.row: f"{part}: {failure}" for failure in invalid if failure.row not in errors})
        valid_rows = np.arange(batch.num_rows)
        if errors and self._on_error == "dead-letter":
            self._dead_letters.send(batch, source_range, errors)
            valid_rows = np.setdiff1d(valid_rows, list(errors))
            columns = {name: column.take(to_arrow(valid_rows)) for name, column in columns.items()}
        kept = self._filter.decoded_rows(columns, source_range)
        self._keeps_most = bool(kept.sum() * 2 > len(kept))
        self._decoded = decoded
        if kept.all() and not errors:
            return batch
        rows = to_arrow(valid_rows[kept])
        self._decoded = {part: column.take(rows) for part, column in decoded.items()}
        return batch.take(rows)

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
        """Return the decoded columns of a batch, and `_raw` and `_error` if the query selects them.

        Returns arrays by column, and the numbers of the rows to return; None for all rows. The others are dead letters.
        Raises `DecodeFailed`: a key or a value is invalid, and `onDecodeError` is fail. `RegistryFailed`: the registry
        did not return a schema.
        """
        headers = batch.column("headers") if self._headers else None
        columns: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        decoded, self._decoded = self._decoded, {}
        for part, decoder in self._decoders.items():
            if part in decoded:
                columns[part] = decoded[part]
                continue
            columns[part], invalid = decoder.decode(batch.column(part), headers)
            if invalid:
                self._report(part, batch, source_range, invalid)
                errors.update({failure.row: f"{part}: {failure}" for failure in invalid if failure.row not in errors})
        if self._wants_errors:
            rows = np.array(sorted(errors), np.int64)
            texts = binaries([errors[row].encode() for row in rows.tolist()])
            columns[ERROR] = _scattered(texts, rows, batch.num_rows).cast(pa.string())
            columns[RAW] = _scattered(batch.column("value").take(to_arrow(rows)), rows, batch.num_rows)
        if not errors or self._on_error != "dead-letter":
            return columns, None
        self._dead_letters.send(batch, source_range, errors)
        return columns, np.setdiff1d(np.arange(batch.num_rows), list(errors))

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

    def _report(self, part: str, batch: pa.RecordBatch, source_range: Range, invalid: list[InvalidValue]) -> None:
        from protocol.schemas.values import decode_failed

        error = decode_failed(source_range.topic, source_range.partition, part, batch, invalid)
        if self._on_error == "fail":
            error.message += (
                f". To read on with null for such a {part}, set onDecodeError=null; to write such records to another "
                "topic, onDecodeError=dead-letter"
            )
            raise error
        log.warning("%s (%d in this batch: %s)", error, len(invalid), _CONSEQUENCES[self._on_error])


class DeadLetters:
    """Writes records of a task that do not decode to `deadLetterTopic`, as they were, with the reason in headers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._producer: Producer | None = None

    def send(self, batch: pa.RecordBatch, source_range: Range, errors: Mapping[int, str]) -> None:
        """Send the records of these rows; returns before they are acknowledged.

        Raises `KafkaError`: an earlier dead letter was not acknowledged.
        """
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


def _scattered(values: pa.Array, rows: npt.NDArray[np.int64], count: int) -> pa.Array:
    """Return a column of `count` rows that has the values in these rows, else null."""
    positions = np.full(count, -1, np.int64)
    positions[rows] = np.arange(len(rows))
    return take_rows(values, positions)
