"""Plans equal those of the JVM connector: the same backlog and options give the same end offsets and ranges.

The tests call its classes in the session's JVM, without a broker: `rateLimit` and `delayBatch` of its stream, and the
ranges of its offset reader.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan import limits
from spark_kafka_source.plan.ranges import offset_ranges
from tests.support.offsets import batch_end
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Ends = Mapping[TopicPartition, int]
# Each backlog takes one call to the JVM.
BACKLOGS = 200 if SOAK else 60


class Connector:
    """The JVM connector's stream and offset reader, with some options and no cluster."""

    def __init__(self, spark: SparkSession, **options: object) -> None:
        assert spark._sc._gateway is not None
        self._gateway, self._jvm = spark._sc._gateway, spark._jvm
        self._classes: Any = self._jvm.org.apache.spark.sql.kafka010
        self._json = self._classes.JsonUtils
        texts = {name.lower(): str(value) for name, value in options.items()}
        inputs = self._jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(texts)
        self.stream = self._classes.KafkaMicroBatchStream(None, {}, inputs, "", None, True)
        as_scala = self._jvm.PythonUtils.toScalaMap(texts)
        insensitive = getattr(self._jvm.org.apache.spark.sql.catalyst.util, "CaseInsensitiveMap$")
        read_options = getattr(insensitive, "MODULE$").apply(as_scala)
        self._reader = self._classes.KafkaOffsetReaderAdmin(None, {}, read_options, "")

    def end_offsets(self, limit: int, starts: Ends, available: Ends) -> dict[TopicPartition, int]:
        result = self._call("rateLimit", limit, self._map(starts), self._map(available))
        rows = json.loads(self._json.partitionOffsets(result))
        return {(topic, int(number)): offset for topic, row in rows.items() for number, offset in row.items()}

    def must_wait(self, min_offsets: int, starts: Ends, available: Ends, max_delay_ms: int) -> bool:
        return bool(self._call("delayBatch", min_offsets, self._map(available), self._map(starts), max_delay_ms))

    def ranges(self, starts: Ends, ends: Ends) -> list[tuple[str, int, int, int]]:
        """Topic, partition, from and until, sorted: the connector's own order is that of a hash map."""
        result = self._reader.getOffsetRangesFromResolvedOffsets(self._map(starts), self._map(ends), None).toString()
        rows = re.findall(r"KafkaOffsetRange\((\w+)-(\d+),(\d+),(\d+),", result)
        assert len(rows) == result.count("KafkaOffsetRange(")
        return sorted((topic, int(number), int(begin), int(until)) for topic, number, begin, until in rows)

    def _map(self, offsets: Ends) -> Any:
        return self._json.partitionOffsets(json.dumps(batch_end(offsets).to_json_dict()))

    def _call(self, method: str, *arguments: Any) -> Any:
        (result,) = [first for first in self.stream.getClass().getDeclaredMethods() if first.getName() == method]
        result.setAccessible(True)
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(arguments))
        for place, argument in enumerate(arguments):
            array[place] = argument
        return result.invoke(self.stream, array)


def backlog(rng: random.Random) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Generate positions and log end offsets: no, little or much backlog, even or skewed."""
    scale = rng.choice([1, 3, 10, 100, 10_000, 2**33])
    starts, ends = {}, {}
    for number in range(rng.randint(1, 9)):
        key = (rng.choice("ab"), number)
        starts[key] = rng.choice([0, rng.randint(0, 1_000)])
        ends[key] = starts[key] + rng.choice([0, scale, rng.randint(0, scale), rng.randint(0, 20 * scale)])
    return starts, ends


def test_random_backlogs_give_end_offsets_and_ranges_of_jvm_connector(spark: SparkSession) -> None:
    rng = random.Random(20)
    split = 0
    for _ in range(BACKLOGS):
        starts, available = backlog(rng)
        total = sum(available[key] - starts[key] for key in starts)
        limit = rng.choice([1, 7, rng.randint(1, 2 * total + 1)])
        options: dict[str, Any] = {}
        if rng.random() < 0.6:
            options["minPartitions"] = rng.randint(1, 30)
        if rng.random() < 0.6:
            # At most about 40 ranges.
            options["maxRecordsPerPartition"] = max(1, total // rng.randint(1, 40))
        connector = Connector(spark, **options)
        case = (starts, available, limit, options)

        ends = limits.end_offsets(starts, available, limit)
        assert ends == connector.end_offsets(limit, starts, available), case
        for until in (ends, available):
            ours = offset_ranges(
                batch_end(starts),
                batch_end(until),
                max_records=options.get("maxRecordsPerPartition"),
                min_partitions=options.get("minPartitions"),
            )
            collected = [(r.topic, r.partition, r.from_offset, r.until_offset) for r in ours]
            assert collected == connector.ranges(starts, until), case
            split += len(collected) > len(starts)
    assert split > BACKLOGS // 2


def test_triggers_below_min_offsets_wait_as_jvm_connector(spark: SparkSession) -> None:
    rng = random.Random(21)
    clock: Any = spark._jvm.org.apache.spark.sql.kafka010.MockedSystemClock  # type: ignore[union-attr]
    outcomes = []
    for _ in range(10):
        max_delay_ms = rng.choice([1, 500, 5_000])
        connector = Connector(spark, _mockSystemTime="")
        # The connector's last trigger is initially at 0 ms, so start the manual clock beyond every delay.
        now_ms = 10_000
        clock.reset()
        clock.advanceCurrentSystemTime(now_ms)
        last_batch_ms: float | None = None
        for _ in range(10):
            starts, available = backlog(rng)
            new = sum(available[key] - starts[key] for key in starts)
            min_offsets = max(1, new + rng.choice([0, 1, 100]))
            wait = limits.must_wait(
                new,
                None,
                min_offsets=min_offsets,
                max_trigger_delay_ms=max_delay_ms,
                now_ms=now_ms,
                last_batch_ms=last_batch_ms,
            )
            assert wait == connector.must_wait(min_offsets, starts, available, max_delay_ms)
            outcomes.append(wait)
            if not wait:
                last_batch_ms = now_ms
            step_ms = rng.choice([0, 1, 400, max_delay_ms - 1, max_delay_ms])
            clock.advanceCurrentSystemTime(step_ms)
            now_ms += step_ms
    assert 10 < sum(outcomes) < 90


@pytest.mark.parametrize("text", ["15m", "90s", "1H", "2d", "250ms", "250", "1999us", "3min", " 7s "])
def test_durations_equal_time_string_of_spark(spark: SparkSession, text: str) -> None:
    from spark_kafka_source.options.scalars import duration_ms

    spark_says = spark._jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(text)  # type: ignore[union-attr]
    assert duration_ms(text) == spark_says
