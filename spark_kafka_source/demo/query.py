"""Spark part of the demo: a streaming query from the topic `orders` to the topic `revenue`, and a batch read.

Called by the demo's `__main__`, which imports this module (and so PySpark) after it has found Java and PySpark.
Amounts of money are decimals, so that sums can be compared to the cent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafka_source.demo.orders import Sum, SumKey
from spark_kafka_source.local_kafka.config import conf_file

ORDERS, REVENUE, GROUP = "orders", "revenue", "orders-etl"
WINDOW_S = 5
WATERMARK_S = 5
TRIGGER_S = 2

_ORDER = (
    "order_id long, customer string, product string, quantity int, price decimal(9, 2), country string, "
    "event_time timestamp"
)
_SUM = "country string, window_start timestamp, orders long, revenue decimal(18, 2)"


def open_session() -> SparkSession:
    """Return a local Spark session with `conf/spark-defaults.conf`, whose log has errors only."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_CONF_DIR", str(conf_file("spark-defaults.conf").parent))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return SparkSession.builder.appName("demo").getOrCreate()


def start_query(
    spark: SparkSession, kafka: Mapping[str, str], checkpoint: str, max_orders_per_batch: int
) -> StreamingQuery:
    """Start the query from `orders` to `revenue`: revenue by country and window, a micro-batch every two seconds.

    `kafka`: options for the source and the sink, with the prefix `kafka.`.
    `checkpoint`: path of the checkpoint.
    `max_orders_per_batch`: limits how fast the query catches up with the orders sent before its start.
    """
    orders = (
        spark.readStream.format("pykafka-group")
        .options(**kafka)
        .option("subscribe", ORDERS)
        .option("kafka.group.id", GROUP)
        .option("kafka.auto.offset.reset", "earliest")
        .option("maxOffsetsPerTrigger", max_orders_per_batch)
        .load()
        .select(sf.from_json(sf.col("value").cast("string"), _ORDER).alias("order"))
        .select("order.*")
    )
    revenue = (
        orders.withWatermark("event_time", f"{WATERMARK_S} seconds")
        .groupBy("country", sf.window("event_time", f"{WINDOW_S} seconds").alias("window"))
        .agg(sf.count("*").alias("orders"), sf.sum(sf.expr("quantity * price")).alias("revenue"))
        .select("country", sf.col("window.start").alias("window_start"), "orders", "revenue")
    )
    return (
        revenue.select(sf.col("country").alias("key"), sf.to_json(sf.struct("*")).alias("value"))
        .writeStream.format("pykafka-group")
        .options(**kafka)
        .option("topic", REVENUE)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=f"{TRIGGER_S} seconds")
        .queryName(GROUP)
        .start()
    )


def read_results(spark: SparkSession, kafka: Mapping[str, str]) -> list[tuple[SumKey, Sum]]:
    """Read `revenue` with a batch query; return the sum of each window and country."""
    rows = (
        spark.read.format("pykafka-group")
        .options(**kafka)
        .option("subscribe", REVENUE)
        .load()
        .select(sf.from_json(sf.col("value").cast("string"), _SUM).alias("sum"))
        .select("sum.*", sf.unix_timestamp("sum.window_start").alias("start_s"))
        .orderBy("start_s", "country")
        .collect()
    )
    return [(SumKey(row.start_s, row.country), Sum(row.orders, int(row.revenue * 100))) for row in rows]
