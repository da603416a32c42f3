"""Build a binary column from the bounds of payloads: the only copy of payload in decoding, made by Arrow's `take`.

Handles bytes and bounds, not records. Used by `decode`, `legacy` and `record_headers`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from protocol.records.arrow_numpy import to_arrow
from protocol.records.varints import Bytes, Integers, Positions

_LARGEST_OFFSET = 2**31 - 1


def binary_column(data: Bytes, at: Positions, length: Integers) -> pa.Array:
    """Return a binary column of `data[at[i] : at[i] + length[i]]`.

    Parameters
    ----------
    data
        Bytes of one or more batches.
    at
        Start of each value; must ascend without overlap and span less than 2 GiB.
    length
        Bytes of each value; -1 for null.
    """
    rows = len(at)
    if not rows:
        return pa.nulls(0, pa.binary())
    base = int(at[0])
    span = int(at[-1]) + max(0, int(length[-1])) - base
    # One long array: its even elements are the payloads, its odd elements the bytes between them.
    offsets = np.empty(2 * rows + 1, np.int32)
    np.subtract(at, base, out=offsets[:-1:2], casting="unsafe")
    smallest = length.min()
    np.add(offsets[:-1:2], np.maximum(length, 0) if smallest < 0 else length, out=offsets[1::2], casting="unsafe")
    # `take` reserves memory for elements of average size, and the short odd elements lower the average. So the last
    # element, which is not taken, is as long as corrects the average. It must lie within the data.
    offsets[-1] = max(span, min(2 * int(length.sum(dtype=np.int64)), len(data) - base, _LARGEST_OFFSET))
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * rows, [None, pa.py_buffer(offsets), pa.py_buffer(data[base : base + int(offsets[-1])])]
    )
    taken = everything.take(to_arrow(np.arange(0, 2 * rows, 2, dtype=np.int32)))
    if smallest >= 0:
        return taken
    validity = pa.py_buffer(np.packbits(length >= 0, bitorder="little"))
    return pa.Array.from_buffers(taken.type, rows, [validity, *taken.buffers()[1:]])
