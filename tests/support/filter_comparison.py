"""Compare filters with Spark's `where`: `python -m tests.support.filter_comparison --count 5000 --seed 1`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from protocol.errors import ConfigurationError, FilterFailed
from protocol.fetch.log_offsets import Range
from protocol.filters.parse import parse_condition
from protocol.filters.record_filter import RecordFilter
from protocol.records.record_fields import HEADERS_TYPE
from tests.support.filter_conditions import VALUE, ConditionMaker, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILED = "failed"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
# Conditions that one Spark job evaluates.
_AT_ONCE = 50


class Comparison:
    """The same records for filters and for Spark."""

    def __init__(self, spark: SparkSession, random: Random, count: int = 200) -> None:
        self._spark = spark
        self._table = records(random, count)
        self._columns = {name: self._table.column(name).combine_chunks() for name in self._table.column_names}
        self._columns["headers"] = _headers(self._columns["h1"].to_pylist(), self._columns["h2"].to_pylist())
        micros = pa.compute.multiply(self._columns["timestamp_ms"], 1000).view(pa.timestamp("us", tz="UTC"))
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "records.parquet")
            pq.write_table(self._table.append_column("timestamp", micros), path)
            # Cached: Spark would push conditions down into Parquet.
            self.frame: DataFrame = spark.read.parquet(path).repartition(1).cache()
            self.frame.count()

    def filtered(self, condition: str, *, ansi: bool) -> set[int] | str:
        """Return the offsets that a filter keeps, or why it is refused or fails."""
        try:
            parsed = parse_condition(condition.format(h1="headers['h1']", h2="headers['h2']"), {"value": VALUE})
        except ConfigurationError as error:
            return f"refused: {error}"
        record_filter = RecordFilter(parsed, ansi=ansi)
        kept: set[int] = set()
        topics = self._columns["topic"].to_pylist()
        partitions = self._columns["partition"].to_pylist()
        try:
            for key in sorted(set(zip(topics, partitions, strict=True))):
                rows = np.array([row for row, pair in enumerate(zip(topics, partitions, strict=True)) if pair == key])
                kept |= set(self._kept(record_filter, Range(*key, 0, 1), rows))
        except FilterFailed:
            return FAILED
        return kept

    def _kept(self, record_filter: RecordFilter, source_range: Range, rows: Any) -> list[int]:
        columns = {name: column.take(pa.array(rows)) for name, column in self._columns.items()}
        for stage in record_filter.of_range(source_range).stages:
            columns = _where(columns, stage.keep(columns))
        if record_filter.decoded_columns:
            columns = _where(columns, record_filter.decoded_rows(columns, source_range))
        offsets: list[int] = columns["offset"].to_pylist()
        return offsets

    def where(self, condition: str) -> set[int] | str:
        """Return the offsets that Spark keeps, or why it is refused or fails."""
        from pyspark.errors import AnalysisException

        try:
            frame = self.frame.where(condition.format(h1="h1", h2="h2")).select("offset")
        except AnalysisException as error:
            return f"refused: {error}"
        try:
            return {row[0] for row in frame.collect()}
        except Exception:
            return FAILED

    def where_all(self, conditions: list[str]) -> list[set[int] | str]:
        """Return the results of conditions that cannot fail, with one job."""
        from pyspark.errors import AnalysisException
        from pyspark.sql.functions import expr

        try:
            columns = [
                expr(condition.format(h1="h1", h2="h2")).alias(f"c{n}") for n, condition in enumerate(conditions)
            ]
            rows = self.frame.select("offset", *columns).collect()
        except AnalysisException:
            return [self.where(condition) for condition in conditions]
        return [{row[0] for row in rows if row[1 + number]} for number in range(len(conditions))]


def differences(spark: SparkSession, seed: int, count: int, *, ansi: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield each condition, with the results of the filter and of Spark. Sets properties of the session."""
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    # docs/filters.md, "Failures": Spark may evaluate a part where a filter does not, or leave it out.
    spark.conf.set("spark.sql.subexpressionElimination.skipForShortcutExpr", "true")
    spark.conf.set("spark.sql.inMemoryColumnarStorage.partitionPruning", "false")
    rules = ("InferFiltersFromConstraints", "SimplifyBinaryComparison", "UnwrapCastInBinaryComparison")
    spark.conf.set("spark.sql.optimizer.excludedRules", ",".join(f"{_OPTIMIZER}.{rule}" for rule in rules))
    random = Random(f"{seed} {ansi}")
    comparison = Comparison(spark, random)
    maker = ConditionMaker(random)
    conditions = [maker.condition() for _ in range(count)]
    for begin in range(0, count, _AT_ONCE):
        some = conditions[begin : begin + _AT_ONCE]
        expected = [comparison.where(condition) for condition in some] if ansi else comparison.where_all(some)
        for condition, where in zip(some, expected, strict=True):
            yield condition, comparison.filtered(condition, ansi=ansi), where


def _headers(*values: Iterable[bytes | None]) -> pa.Array:
    """Return headers with the names h1, h2; each record also has an earlier one that the last one replaces."""
    lists = []
    for pair in zip(*values, strict=True):
        named = [(f"h{number}", value) for number, value in enumerate(pair, 1) if value is not None]
        lists.append([("h1", b"earlier"), *named] if pair[0] is not None else named or None)
    return pa.array(lists, HEADERS_TYPE)


def _where(columns: Mapping[str, pa.Array], mask: Any) -> dict[str, pa.Array]:
    rows = pa.array(np.flatnonzero(mask))
    return {name: column.take(rows) for name, column in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for ansi in (False, True):
        counts = {"equal": 0, "refused here": 0, "refused by Spark": 0, "failed in both": 0, "different": 0}
        for condition, filtered, where in differences(spark, arguments.seed, arguments.count // 2, ansi=ansi):
            if isinstance(where, str) and where != FAILED:
                counts["refused by Spark"] += 1
            elif isinstance(filtered, str) and filtered != FAILED:
                counts["refused here"] += 1
                if counts["refused here"] <= 10:
                    print("refused", filtered, flush=True)
            elif filtered == where:
                counts["failed in both" if where == FAILED else "equal"] += 1
            else:
                counts["different"] += 1
                extra = (filtered, where) if FAILED in (filtered, where) else (filtered - where, where - filtered)
                print(
                    f"ansi={ansi}",
                    condition,
                    extra if isinstance(extra[0], set) and len(str(extra)) < 200 else str(extra)[:80],
                    flush=True,
                )
        print(f"ansi={ansi}", counts, flush=True)


if __name__ == "__main__":
    main()
