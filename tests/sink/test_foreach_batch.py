"""The `foreachBatch` function without Spark: early checks and pickling. test_documents.py runs it with Spark."""

from __future__ import annotations

import pickle
import pickletools

import pytest
from pyspark import cloudpickle

from protocol.errors import ConfigurationError
from spark_kafka_source import foreach_batch_writer

CONNECT = {"kafka.bootstrap.servers": "localhost:9092"}


def test_wrong_options_are_refused_before_query_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.acks is '7'"):
        foreach_batch_writer({**CONNECT, "kafka.acks": 7})


def test_option_values_may_be_numbers_and_booleans() -> None:
    written = foreach_batch_writer({**CONNECT, "kafka.linger.ms": 5, "kafka.enable.idempotence": True})
    assert dict(written.options)["kafka.linger.ms"] == "5"
    assert dict(written.options)["kafka.enable.idempotence"] == "true"


def test_writer_is_pickled_by_name_and_repr_hides_values() -> None:
    """A Spark Connect server unpickles it from its own installation, independent of the client's Python version."""
    written = foreach_batch_writer({**CONNECT, "topic": "orders"})
    sent = cloudpickle.dumps(written)
    assert pickle.loads(sent) == written
    assert "spark_kafka_source.sink.foreach_batch" in {value for _, value, _ in pickletools.genops(sent)}
    assert "localhost" not in repr(written)
