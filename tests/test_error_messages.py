"""Error classes have the names of Spark's own Kafka connector, also in errors of tasks."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from protocol.errors import DataLoss, UsageError
from protocol.fetch.log_offsets import Range
from protocol.producer.broker_producer import _detail
from protocol.records.record_columns import record_columns
from protocol.schemas.decoding import UnknownName, check_fields
from spark_kafka_source import error_messages
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.task import range_reader
from spark_kafka_source.task.row_schema import arrow_schema
from tests.support.jvm_connector import jvm_connector_jars

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}


def test_error_classes_exist_in_the_connector() -> None:
    """Slow the first time: downloads Spark's connector."""
    (jar,) = [path for path in jvm_connector_jars() if path.name.startswith("spark-sql-kafka")]
    with zipfile.ZipFile(jar) as connector:
        conditions = json.loads(connector.read("error/kafka-error-conditions.json"))
    reference = {
        f"{name}.{part}" if part else name
        for name, condition in conditions.items()
        for part in condition.get("subClass", {"": None})
    }
    ours = {text for name, text in vars(error_messages).items() if name.isupper() and not name.startswith("_")}
    assert len(ours) > 10
    assert ours - reference == set()


def test_data_loss_in_a_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Consumer:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __iter__(self) -> object:
            raise DataLoss("t-0: gone", topic="t", partition=0)

    monkeypatch.setattr(range_reader, "BoundedReader", Consumer)
    options = parse_source_options(GIVEN, streaming=False)
    with pytest.raises(DataLoss) as raised:
        list(range_reader.read_range(options, [Range("t", 0, 0, 5)]))
    assert str(raised.value) == "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] t-0: gone"
    assert raised.value.context == {"topic": "t", "partition": 0}


@pytest.mark.parametrize("timestamp_ms", [2**63 // 1000 + 1, 2**63 - 1, -(2**63) // 1000 - 1, -(2**63)])
def test_timestamp_beyond_spark_s_microseconds_is_named(timestamp_ms: int) -> None:
    times = pa.array(np.array([0, timestamp_ms, 5], np.int64))
    batch = pa.RecordBatch.from_arrays([times], names=["timestamp_ms"])
    with pytest.raises(UsageError, match=r"^\[KAFKA_MALFORMED_RECORD_TIMESTAMP\] a record of t-3 ") as raised:
        range_reader.with_spark_columns(batch, Range("t", 3, 10, 20), arrow_schema(("timestamp",)))
    assert f"has the timestamp {timestamp_ms}, " in str(raised.value)


def test_largest_timestamps_of_spark_are_read() -> None:
    most = (2**63 - 1) // 1000
    times = pa.array(np.array([most, -most, -1], np.int64))
    batch = pa.RecordBatch.from_arrays([times], names=["timestamp_ms"])
    spark_columns = range_reader.with_spark_columns(batch, Range("t", 3, 10, 20), arrow_schema(("timestamp",)))
    assert spark_columns.column(0).cast(pa.int64()).to_pylist() == [most * 1000, -most * 1000, -1000]


NAMES = [f"n{number}" for number in range(30)]
TWENTY = ", ".join(NAMES[:20])


def test_lists_in_errors_have_three_names_and_choices_twenty() -> None:
    with pytest.raises(UnknownName) as raised:
        check_fields(NAMES, ["a", "b", "c", "d", "e"])
    assert str(raised.value) == f"the schema has no field a, b, c and 2 more; it has {TWENTY} and 10 more"
    with pytest.raises(UsageError, match=f"the columns are {TWENTY} and 10 more$"):
        record_columns(pa.table({name: [1] for name in NAMES}), 0)
    rejected = [{"batch_index": number, "batch_index_error_message": "late"} for number in range(5)]
    text = _detail({"error_message": None, "record_errors": rejected})
    assert text == "record 0: late; record 1: late; record 2: late and 2 more"
