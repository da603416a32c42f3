"""The queries of docs/delta.md, one after the other, in a separate process that tests kill at any time.

    python -m tests.jobs.delta_page BOOTSTRAP SOURCE TARGET FOLDER JARS

Needs a PySpark that Delta supports. The queries have small batches, and end when they have read what exists.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from tests.support.documents import block

BLOCKS = {"loaded = (": "loaded", "def write_both(": "divided", "published = (": "published"}


def main(bootstrap: str, source: str, target: str, folder: str, jars: str) -> None:
    extension = "io.delta.sql.DeltaSparkSessionExtension"
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    settings = {"jars": jars, "sql.extensions": extension, "sql.catalog.spark_catalog": catalog, "ui.enabled": "false"}
    # One task in place of 50 for the state of a small table.
    settings |= {"databricks.delta.snapshotPartitions": "1", "sql.shuffle.partitions": "1"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    names: dict[str, Any] = {"spark": builder.getOrCreate()}
    places = {
        "broker-1:9092": bootstrap,
        '"orders"': f'"{source}"',
        '"orders-published"': f'"{target}"',
        "/tables": f"{folder}/tables",
        "/checkpoints": f"{folder}/checkpoints",
        '"startingOffsets", "earliest")': '"startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)',
        '.load("': '.option("maxFilesPerTrigger", 1).load("',
    }
    for words, query in BLOCKS.items():
        text = block("delta.md", words)
        exec(text.with_names({name: place for name, place in places.items() if name in text.text}), names)
        names[query].awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
