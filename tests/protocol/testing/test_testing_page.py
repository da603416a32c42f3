"""The examples of docs/testing.md, run as a user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from protocol import KafkaError
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.testing import FakeKafka
from tests.support.documents import ROOT, block
from tests.support.soak import SOAK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN = ("-p", "no:kafka", "-p", "spark_kafka_source.pytest_plugin", "-p", "no:cacheprovider")


def run_pytest(folder: Path, text: str) -> str:
    """Run the text as a file of tests in another process, and return what pytest prints."""
    (folder / "test_example.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", *PLUGIN, "test_example.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_spark_example_of_the_page_passes(spark: SparkSession, tmp_path: Path) -> None:
    """The example's test in this session of Spark; `test_spark_example_runs_alone` starts another one."""
    example = block("testing.md", "def doubled(").text
    assert len(example.splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(example, names)
    with FakeKafka() as kafka:
        names["test_values_are_doubled"](spark, kafka, tmp_path)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif(not SOAK, reason="starts another Spark")
def test_spark_example_runs_alone(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, block("testing.md", "def doubled(").text)


def test_fixture_of_the_page_replaces_that_of_the_plugin(tmp_path: Path) -> None:
    fixture = block("testing.md", "FakeKafka(brokers=3, settings").text
    test = "\n\ndef test_brokers(kafka):\n    assert len(kafka.create_topic('t').partitions[0].replicas) == 3\n"
    assert "1 passed" in run_pytest(tmp_path, fixture + test)


def test_scenario_of_the_page_runs(tmp_path: Path) -> None:
    """Slow: three processes, each of which prepares a world as a user's does, without what others have prepared."""
    pytest.importorskip("greenlet")
    (tmp_path / "copies.py").write_text(block("testing.md", "# copies.py").text)
    (tmp_path / "service.py").write_text(block("testing.md", "# service.py").text)
    test = block("testing.md", "from copies import scenario").text
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    for name in ("copies:scenario", "service:scenario"):
        command = [sys.executable, "-m", "protocol.testing.simulation", name, "--seed", "7"]
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, timeout=120, capture_output=True, text=True
        )
        assert "fault 1:" in ended.stdout + ended.stderr, "an example without faults shows nothing"
    failing = """

def failing(world):
    world.sleep(60)
    assert world.now_s < 60


def test_failure_names_seed_and_command(simulation):
    with pytest.raises(Exception, match="(?s)failed with seed 3: AssertionError.*simulation .*failing --seed 3"):
        simulation(failing, 3)
"""
    assert "2 passed" in run_pytest(tmp_path, test.replace("range(10)", "range(1)") + failing)


def test_examples_of_expectations_pass(tmp_path: Path) -> None:
    assert "2 passed" in run_pytest(tmp_path, block("testing.md", "def test_orders_are_copied").text)


def test_example_of_controls_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("testing.md", "kafka.refuse(").text, {})
    printed = capsys.readouterr().out
    assert "value=b'1'" in printed
    assert printed.endswith(" 3\n"), "two refused requests, and the one that succeeds"


def test_example_of_records_and_offsets_prints_their_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("testing.md", "kafka.log(").text, {})
    record, offsets, ends = capsys.readouterr().out.splitlines()
    fields = re.findall(r"(\w+)=", record)
    description = (ROOT / "docs" / "testing.md").read_text().partition("list of named tuples")[2]
    assert re.findall(r"`(\w+)`", description)[: len(fields)] == fields
    assert (offsets, ends) == ("{('orders', 1): 2}", "[0, 2]")


def test_exit_codes_are_those_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    lines = ["def passes(world):", "    return {'read': 1}", "def fails(world):", "    raise ValueError(world)"]
    (tmp_path / "codes.py").write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    both = ["codes:passes", "codes:fails"]
    commands = ((["codes:passes"], 0), (both, 1), ([], 2), (["absent:passes"], 2), ([*both, "--seed", "1"], 2))
    for scenarios, code in commands:
        command = [sys.executable, "-m", "protocol.testing.simulation", *scenarios, "--seeds", "1", "--jobs", "1"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, timeout=120, capture_output=True, text=True)
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr


def test_consumer_of_the_page_does_not_poll_on_after_failed_work() -> None:
    """A commit of the next records would include those of the failed work."""
    names: dict[str, Any] = {}
    exec(block("testing.md", "# copies.py").text, names)
    polled = []

    class Consumer:
        def __init__(self, properties: object) -> None: ...

        def assign(self, partitions: object) -> None: ...

        def poll(self, timeout_ms: float) -> Any:
            polled.append(timeout_ms)
            assert len(polled) <= 2, "it polls on"
            if len(polled) == 1:
                raise KafkaError("no records")
            return ConsumerRecords({})

    class Received(list[int]):
        def __iadd__(self, values: object) -> Any:
            raise KafkaError("the work failed")

    names["KafkaConsumer"] = Consumer
    with pytest.raises(KafkaError, match="the work failed"):
        names["consume"]("servers", Received())


def test_examples_of_security_run(capsys: pytest.CaptureFixture[str]) -> None:
    for example in (block("testing.md", '{"alice": "alice-secret"}'), block("testing.md", "authorizer = {")):
        exec(example.text, {})
    assert capsys.readouterr().out == "{}\n[]\n['orders']\n"


def test_example_of_quotas_is_throttled(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("testing.md", "producer_byte_rate").text, {})
    (metric,) = re.findall("produce-throttle-time-max', .*value=([0-9.]+)", capsys.readouterr().out)
    assert 0 < float(metric) < 10_000


def test_table_names_methods_of_the_cluster() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    table = page[page.index("| control |") :].split("\n\n")[0]
    names = [part.split("(")[0] for line in table.splitlines()[2:] for part in line.split("|")[1].split("`")[1::2]]
    assert len(names) > 20
    with FakeKafka() as kafka:
        assert [name for name in names if not hasattr(kafka, name)] == ["FakeKafka"]


def test_example_of_the_registry_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("testing.md", "FakeSchemaRegistry(").text, {})
    assert "http://127.0.0.1:" in capsys.readouterr().out
