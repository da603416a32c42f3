"""Pickled objects that Spark sends to executors, on an executor without this package."""

from __future__ import annotations

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


RESTORED = "pickle.load(open('sent', 'rb'))"


def executor(folder: Path, sent: object, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code in another Python, in this folder; `RESTORED` is an expression for what was sent."""
    (folder / "sent").write_bytes(cloudpickle.dumps(sent))
    command = [sys.executable, *options, "-c", f"import logging, pickle, sys; {code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", PICKLED)
def test_executor_without_package_fails_with_remedy(name: str, tmp_path: Path) -> None:
    # `-S` disables site, which would add the path of an editable install.
    site = Path(pyarrow.__file__).parent.parent
    ended = executor(tmp_path, PICKLED[name](), f"sys.path.append({str(site)!r}); {RESTORED}", "-S", "-I")
    last = ended.stderr.strip().splitlines()[-1]
    assert "No module named 'spark_kafka_source" in last
    assert sys.executable in last
    assert "docs/installing.md" in last


def test_executor_with_another_package_protocol_fails_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "protocol.py"
    path.touch()
    last = executor(tmp_path, PICKLED["stream reader"](), RESTORED).stderr.strip().splitlines()[-1]
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
    imported = executor(tmp_path, PICKLED[name](), f"{RESTORED}; print(*sys.modules)").stdout.split()
    assert "spark_kafka_source.task.range_reader" in imported
    unwanted = ("spark_kafka_source.driver", "protocol.group", "protocol.consumer", "protocol.admin", "pandas")
    assert [name for name in imported if name.startswith(unwanted)] == []


def test_class_of_a_function_is_restored_in_another_process(tmp_path: Path) -> None:
    class Local(KafkaGroupDataSource):  # type: ignore[misc]
        """A class that no module contains, as in a notebook."""

    ended = executor(tmp_path, Local({"subscribe": "orders"}), f"print({RESTORED}.options['subscribe'])")
    assert (ended.stdout, ended.stderr) == ("orders\n", "")


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("", False)])
def test_level_of_messages_in_spark_processes_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, shown: bool
) -> None:
    code = (
        "from spark_kafka_source.source import KafkaGroupDataSource as S; S({}); "
        "logging.getLogger('spark_kafka_source.driver').info('starts'); logging.getLogger('other').info('silent')"
    )
    monkeypatch.setenv(LOG_LEVEL, level)
    ended = executor(tmp_path, None, code)
    assert ended.stderr == ("INFO spark_kafka_source.driver: starts\n" if shown else "")


def test_warning_in_spark_process_names_level_and_logger(tmp_path: Path) -> None:
    code = (
        f"source = {RESTORED}; source.options['header'] = 'x'; "
        "from spark_kafka_source.options.parsing import parse_sink_options; parse_sink_options(source.options)"
    )
    ended = executor(tmp_path, SINK, code)
    assert ended.stderr.startswith("WARNING protocol.base.once: header has no effect: ")
