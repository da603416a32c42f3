"""A query at the end of one trigger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_kafka_source.lag.table import Lag


@dataclass(frozen=True)
class Sample:
    """A query at the end of one trigger; unknown values are None.

    Attributes
    ----------
    time : datetime.datetime
        Start of the trigger.
    batch : int
    rows : int
        Number of rows that the batch read.
    input_rows_per_s, processed_rows_per_s : float or None
        Rows read per second since the previous trigger, and rows per second of this batch.
    batch_s : float or None
        Duration of the trigger.
    lag : Lag or None
        The lag at the end of the batch, by partition.
    group : str or None
        State and number of members of the group.
    offsets : int or None
        Number of offsets that the batch covers: more than `rows` if the option `filter` left out rows.
    """

    time: datetime
    batch: int
    rows: int
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_s: float | None
    lag: Lag | None = None
    group: str | None = None
    offsets: int | None = None
