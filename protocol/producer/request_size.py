"""No record may be larger than a request. Pure; called by `async_producer` before anything of a batch is gathered."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol.errors import UsageError
from protocol.records.batch_header import HEADER_BYTES


def check_sizes(topic: str, sizes: npt.NDArray[np.int64], max_request_size_bytes: int) -> None:
    """Raises `UsageError` for the first record that no request could hold. `sizes` are bytes, encoded."""
    too_large = np.flatnonzero(sizes > max_request_size_bytes - HEADER_BYTES)
    if len(too_large):
        row = int(too_large[0])
        size_bytes = int(sizes[row]) + HEADER_BYTES
        raise UsageError(
            f"a record for topic {topic} (row {row} of its batch) is {size_bytes} bytes, more than "
            f"max.request.size ({max_request_size_bytes}). Raise it, and max.message.bytes of the topic if that "
            "is lower, or write smaller records. Nothing of this batch was sent",
            topic=topic,
            size_bytes=size_bytes,
            settings=("max.request.size",),
        )
