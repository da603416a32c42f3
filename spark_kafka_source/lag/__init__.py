"""Lag of queries and consumer groups: tables, the metrics of Spark's own connector, a listener, plots.

Runs on the driver, or in the client of Spark Connect. A query's lag comes from its progress. Requests to brokers are
necessary for the lag of a group, for lag in seconds, and before PySpark 4.2 for the log end offsets.

    from spark_kafka_source.lag import LagListener, lag_of_group, lag_of_query

    lag_of_query(query.lastProgress).offsets_behind     # sum of all partitions
    lag_of_query(query).metrics()                       # {"minOffsetsBehindLatest": 0, …}, as in Spark's connector
    lag_of_query(query).skipped                         # offsets that were deleted before they were read
    lag_of_group("broker-1:9092", "orders-etl")         # a table, also in a notebook
    lag_of_group("broker-1:9092", "orders-etl").plot()

    listener = LagListener(options={"kafka.bootstrap.servers": "broker-1:9092"})
    spark.streams.addListener(listener)                 # then listener.latest, listener.to_pandas(), listener.plot()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach
from spark_kafka_source.lag.of_group import lag_of_group
from spark_kafka_source.lag.of_query import lag_of_query
from spark_kafka_source.lag.table import SCHEMA, Lag, PartitionLag

if TYPE_CHECKING:
    from spark_kafka_source.lag.listener import HISTORY_SCHEMA, LagAtTime, LagListener

__all__ = [
    "HISTORY_SCHEMA",
    "SCHEMA",
    "Lag",
    "LagAtTime",
    "LagListener",
    "PartitionLag",
    "lag_of_group",
    "lag_of_query",
]

# PySpark is not needed for the lag of a group.
__getattr__, __dir__ = attach(__name__, {"spark_kafka_source.lag.listener": "HISTORY_SCHEMA LagAtTime LagListener"})
