"""Watch a streaming query: rates, batch time, lag and the state of its group, in a notebook or a terminal.

`history.py` collects the samples, `figure.py` and `line.py` show them, `loop.py` updates the display.
"""

from __future__ import annotations

from spark_kafka_source.watching.history import QueryHistory
from spark_kafka_source.watching.loop import watch
from spark_kafka_source.watching.sample import Sample

__all__ = ["QueryHistory", "Sample", "watch"]
