"""Write record batches to a Parquet or Arrow file, in bounded memory; the file appears when it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from protocol.tables import READ_SCHEMA

# Before the name of a decoded column, beside its JSON text under the column's own name.
TYPED = "typed_"
SUFFIXES = (".parquet", ".arrow")
# Of a row group: large enough for columns to compress, small enough for memory.
_MAX_ROWS = 1 << 18
_MAX_BYTES = 32 << 20


def _open(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix != ".parquet":
        return pa.ipc.new_file(path, schema)
    from pyarrow import parquet  # brings pandas along, which takes a while

    return parquet.ParquetWriter(path, schema, compression="zstd")


class RecordFile:
    """A file that receives record batches of one topic, with the columns of `protocol.read`.

    It is written under a temporary name beside it, and renamed when the context ends without an error.

    `path`: the suffix is one of `SUFFIXES`.
    `types`: types of decoded columns; of others than those of `protocol.read`, too.
    """

    def __init__(self, path: Path, topic: str, types: Mapping[str, pa.DataType] | None = None) -> None:
        decoded = dict(types or {})
        stored = [field.with_type(decoded.pop(field.name, field.type)) for field in READ_SCHEMA]
        self._schema = pa.schema([*stored, *decoded.items()])
        self._path = path.resolve()  # a link stays one
        self._partial = self._path.with_name(f".{path.name}.partial")
        self._topics = pa.array([topic])
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._writer = _open(self._partial, path.suffix, self._schema)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._write_group()
            self._writer.close()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add a batch that has all columns; those decoded under the names `typed_…`."""
        index = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        arrays = {
            "topic": pa.DictionaryArray.from_arrays(index, self._topics),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
            **dict(zip(batch.schema.names, batch.columns, strict=True)),
        }
        self._batches.append(
            pa.RecordBatch.from_arrays(
                [arrays.get(TYPED + name, arrays[name]) for name in self._schema.names], schema=self._schema
            )
        )
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _MAX_ROWS or self._bytes >= _MAX_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
            self._batches, self._rows, self._bytes = [], 0, 0
            self._writer.write_table(table)
