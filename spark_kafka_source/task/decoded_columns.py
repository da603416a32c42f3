"""Keys and values with a schema, as columns of its types; what does not decode fails the query or is null.

Runs in the executors' Python workers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.consumer.log_offsets import Range
from protocol.errors import DecodeFailed
from protocol.records.arrow_numpy import nullable_binaries, take_rows, to_numpy
from spark_kafka_source.options.selection import ERROR, RAW
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS

if TYPE_CHECKING:
    from protocol.schemas.avro_resolution import InvalidValue

log = logging.getLogger(__name__)


class DecodedColumns:
    """Decodes the keys and values of one task.

    Parameters
    ----------
    options : SourceOptions
    """

    def __init__(self, options: SourceOptions) -> None:
        self._decoders = {part: PROCESS.decoder(schema, options.registry, part) for part, schema in options.schemas}
        self._fails = options.on_decode_error == "fail"
        self._headers = options.schema_id_location == "header"
        self._wants_errors = bool({RAW, ERROR} & set(options.row_columns))

    def of(self, batch: pa.RecordBatch, wanted: Range) -> dict[str, pa.Array]:
        """Return the decoded columns of a batch, and `_raw` and `_error` if the query wants them.

        Raises
        ------
        DecodeFailed
            A key or a value is invalid, and `onDecodeError` is fail.
        RegistryFailed
            The registry did not return a schema.
        """
        headers = batch.column("headers") if self._headers else None
        columns: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for part, decoder in self._decoders.items():
            columns[part], invalid = decoder.decode(batch.column(part), headers)
            if invalid:
                self._report(part, batch, wanted, invalid)
                errors.update({each.row: f"{part}: {each}" for each in invalid if each.row not in errors})
        if self._wants_errors:
            texts = [None if (text := errors.get(row)) is None else text.encode() for row in range(batch.num_rows)]
            columns[ERROR] = nullable_binaries(texts).cast(pa.string())
            columns[RAW] = take_rows(batch.column("value"), _positions(errors, batch.num_rows))
        return columns

    def _report(self, part: str, batch: pa.RecordBatch, wanted: Range, invalid: list[InvalidValue]) -> None:
        first = min(invalid, key=lambda each: each.row)
        offset = int(to_numpy(batch.column("offset"))[first.row])
        place = f"{wanted.topic}-{wanted.partition}, offset {offset}"
        if self._fails:
            raise DecodeFailed(
                f"{place}: the {part} does not decode: {first}. To read on with null for such a {part}, set "
                "onDecodeError=null",
                topic=wanted.topic,
                partition=wanted.partition,
                offset=offset,
            )
        text = "%s: %d %ss of a batch do not decode and are null; the first one: %s"
        log.warning(text, place, len(invalid), part, first)


def _positions(rows: dict[int, str], count: int) -> npt.NDArray[np.int64]:
    positions = np.full(count, -1, np.int64)
    for row in rows:
        positions[row] = row
    return positions
