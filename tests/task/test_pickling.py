"""Pickled objects that Spark sends to executors, on an executor without this package."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from spark_kafka_source.source import KafkaGroupDataSource
from spark_kafka_source.task.pickling import LOG_LEVEL
from spark_kafka_source.task.range_reader import RangeReader

SOURCE = KafkaGroupDataSource(
    {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "kafka.sasl.mechanism": "PLAIN"}
)
SINK = KafkaGroupDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
ROWS = StructType().add("value", "string")
PICKLED = {
    "data source": lambda: SOURCE,
    "stream reader": lambda: SOURCE.streamReader(SOURCE.schema()),
    "batch reader": lambda: SOURCE.reader(SOURCE.schema()),
    "stream writer": lambda: SINK.streamWriter(ROWS, False),
    "batch writer": lambda: SINK.writer(ROWS, False),
}


@pytest.mark.parametrize("name", PICKLED)
def test_executor_without_package_fails_with_remedy(name: str, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(PICKLED[name]()))
    # `-S` disables site, which would add the path of an editable install.
    site = Path(pyarrow.__file__).parent.parent
    code = f"import pickle, sys; sys.path.append({str(site)!r}); pickle.load(open({str(sent)!r}, 'rb'))"
    ended = subprocess.run([sys.executable, "-S", "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert "No module named 'spark_kafka_source" in last
    assert sys.executable in last
    assert "docs/installing.md" in last


def test_executor_with_another_package_protocol_fails_with_its_path(tmp_path: Path) -> None:
    sent, path = tmp_path / "sent", tmp_path / "protocol.py"
    sent.write_bytes(cloudpickle.dumps(PICKLED["stream reader"]()))
    path.write_text("")
    code = f"import pickle; pickle.load(open({str(sent)!r}, 'rb'))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: `protocol` is {path}, another package or module")


@pytest.mark.parametrize("name", PICKLED)
def test_executor_with_package_restores_the_options(name: str) -> None:
    original = PICKLED[name]()
    restored = pickle.loads(cloudpickle.dumps(original))
    assert type(restored) is (RangeReader if "reader" in name else type(original))
    options = "options" if name == "data source" else "_options"
    assert getattr(restored, options) == getattr(original, options)


@pytest.mark.parametrize("name", ["stream reader", "batch reader"])
def test_executor_does_not_import_modules_of_the_driver(name: str, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(PICKLED[name]()))
    code = f"import pickle, sys; pickle.load(open({str(sent)!r}, 'rb')); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = ended.stdout.split()
    assert "spark_kafka_source.task.range_reader" in imported
    unwanted = ("spark_kafka_source.driver", "protocol.group", "protocol.consumer", "protocol.admin", "pandas")
    assert [name for name in imported if name.startswith(unwanted)] == []


def test_class_of_a_function_is_restored_in_another_process(tmp_path: Path) -> None:
    class Local(KafkaGroupDataSource):  # type: ignore[misc]
        """A class that no module contains, as in a notebook."""

    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(Local({"subscribe": "orders"})))
    code = f"import pickle; print(pickle.load(open({str(sent)!r}, 'rb')).options['subscribe'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("orders\n", "")


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("", False)])
def test_level_of_messages_in_spark_processes_comes_from_the_environment(level: str, shown: bool) -> None:
    code = (
        "import logging; from spark_kafka_source.source import KafkaGroupDataSource as S; S({}); "
        "logging.getLogger('spark_kafka_source.driver').info('starts'); logging.getLogger('other').info('silent')"
    )
    env = {**os.environ, LOG_LEVEL: level}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    assert ended.stderr == ("INFO spark_kafka_source.driver: starts\n" if shown else "")


def test_warning_in_spark_process_names_level_and_logger(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(SINK))
    code = (
        "import logging, pickle, sys; source = pickle.load(open(sys.argv[1], 'rb')); source.options['header'] = 'x'; "
        "from spark_kafka_source.options.parsing import parse_sink_options; parse_sink_options(source.options)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(sent)], capture_output=True, text=True)
    assert ended.stderr.startswith("WARNING protocol.base.once: header has no effect: ")
