"""Find rows larger than `max.request.size`: they fail alone, before a request is sent. Called by `batch_assembler`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol.errors import UsageError
from protocol.records.batch_header import HEADER_BYTES


def too_large(
    topic: str, sizes: npt.NDArray[np.int64], max_request_size_bytes: int, *, say_row: bool
) -> dict[int, UsageError]:
    """Return the errors of rows that no request can contain, by row number.

    Parameters
    ----------
    sizes : ndarray of int64
        Encoded bytes of each row.
    say_row : bool
        Include the row number in the message.
    """
    rows = np.flatnonzero(sizes > max_request_size_bytes - HEADER_BYTES).tolist()
    return {
        row: _error(topic, f" (row {row} of its batch)" if say_row else "", int(sizes[row]), max_request_size_bytes)
        for row in rows
    }


def _error(topic: str, which: str, size_bytes: int, max_request_size_bytes: int) -> UsageError:
    size_bytes += HEADER_BYTES
    return UsageError(
        f"a record for topic {topic}{which} is {size_bytes} bytes, more than max.request.size "
        f"({max_request_size_bytes}). Raise it, and max.message.bytes of the topic if that is lower, or write smaller "
        "records",
        topic=topic,
        size_bytes=size_bytes,
        settings=("max.request.size",),
    )
