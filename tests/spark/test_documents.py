"""Run every code block and every command of README and docs, here or in the test that takes it or that a table names.

Names of brokers, topics and folders are replaced by the test's; the rest is run as printed. Blocks without a language
are diagrams or formats; the tables list them too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks import run as benchmarks
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import produce
from tests.support.documents import ROOT, TUTORIAL, block, blocks, commands
from tests.support.read_back import read_back
from tests.support.spark_frames import stream, write
from tests.support.wait_until import wait_until

HERE = "tests/spark/test_documents.py::"
# Tests that take their blocks otherwise than by `block(page, text)`: (page, text in the block) -> test; no text: each
# block of the page.
PYTHON = {
    ("consuming.md", ""): "tests/protocol/fetch/test_examples.py::test_first_example_runs",
    ("producing.md", ""): "tests/protocol/producer/test_examples.py::test_example_of_the_page_runs",
    (
        "delta.md",
        "",
    ): "tests/spark/test_delta.py::test_queries_of_the_page_write_each_record_once_while_they_are_killed",
    **{(page.name, ""): "tests/spark/test_tutorial.py::test_pages_run_in_order_as_printed" for page in TUTORIAL},
    **{
        ("clouds.md", words): "tests/protocol/clouds/test_documents.py::test_options_of_clouds_are_accepted"
        for words in ("event_hubs_vm = {", "msk_iam = {", "google_identity = {", "confluent_oauth = {")
    },
    **{
        ("clouds.md", words): "tests/protocol/clouds/test_documents.py::test_token_functions_of_docs_return_a_token"
        for words in ("CertificateCredential", "getServiceCredentialsProvider(name)")
    },
}
_CALL = re.compile(r"""\bblock\(\s*"([^"]+)",\s*("[^"\n]*"|'[^'\n]*')\)""")
BLOCKS_NOT_RUN = {
    ("cli.md", "ok       dns"),
    ("cli.md", "# ~/.config/pykafka/config.toml"),
    ("troubleshooting.md", "org.apache.spark."),
    ("troubleshooting.md", "ImportError: `protocol`"),
    ("troubleshooting.md", "WARN PythonWorkerFactory"),
}
EXTRAS = "notebook spark spark,cli tls prometheus opentelemetry simulation cli azure aws google filter"
# Test -> commands. Without a test: they run this one, run for hours, download packages, or exist in Databricks only.
COMMANDS = {
    "tests/spark/demo/test_demo.py::test_demo_ends_with_correct_results_lag_zero_and_picture": (
        *("make demo", "make demo SECURITY=sasl_ssl", "python -m spark_kafka_source.demo"),
        "python -m spark_kafka_source.demo --picture docs/images/demo.png",
    ),
    "tests/spark/local_kafka/test_local_kafka.py::test_command_prints_address_and_ends_on_ctrl_c": (
        "python -m spark_kafka_source.local_kafka --port 9092 --topic orders:3 --topic orders-upper:3",
        "python -m spark_kafka_source.local_kafka --port 9092 --topic orders:3 --registry-port 8081",
    ),
    "tests/local_kafka/test_command.py::test_acls_of_command_apply_to_its_users_until_sigterm": (
        "python -m spark_kafka_source.local_kafka",
    ),
    "tests/spark/test_standalone_cluster.py::test_executors_import_package_from_archive": (
        "python -m pip wheel . --no-deps -w dist && cp dist/spark_kafka_source-*.whl pkg.zip",
        "spark-submit --archives pkg.zip",
    ),
    "tests/cli/test_reference_page.py::test_reference_equals_the_commands": ("python -m tests.cli.reference_page",),
    "tests/spark/test_examples.py::test_upper_writes_values_until_ctrl_c": (
        "export PYSPARK_PYTHON=$(which python) KAFKA_BOOTSTRAP_SERVERS=localhost:9092",
        "python examples/upper.py localhost:9092 orders orders-upper orders-etl /tmp/orders-upper",
    ),
    "tests/spark/test_tutorial.py::test_pages_run_in_order_as_printed": (
        "PYSPARK_PYTHON=env/bin/python env/bin/python job.py localhost:9092 checkpoints/totals",
    ),
    "tests/protocol/testing/test_testing_page.py::test_scenario_of_the_page_runs": (
        "python -m protocol.testing.simulation copies:scenario --seed 7",
    ),
    "tests/test_makefile.py::test_clean_leaves_nothing_that_git_ignores": ("make clean",),
    "tests/test_makefile.py::test_clean_downloads_leaves_other_files_of_the_folder": ("make clean-downloads",),
    "tests/simulation/test_coverage.py::test_page_names_what_no_seed_has_reached": (
        "python -m tests.simulation.coverage --page docs/simulation-coverage.md",
    ),
    "tests/simulation/test_broken.py::test_scenarios_find_quick_faults_by_their_first_seeds": (
        "python -m tests.simulation --broken all --page docs/deliberate-faults.md",
    ),
    "tests/test_site.py::test_site_has_every_page_and_no_broken_link": ("make docs",),
    HERE + "test_benchmarks_of_the_docs_run": ("make bench",),
    "tests/options/test_options.py::test_module_prints_the_docs_page": ("python -m spark_kafka_source.options",),
    "tests/options/test_options.py::test_docs_page_of_options_is_current": (
        "python -m spark_kafka_source.options > docs/options.md",
    ),
    "tests/test_public_names.py::test_public_names_are_those_of_the_list": (
        "python -m tests.test_public_names > tests/public_names.txt",
    ),
    "tests/protocol/test_property_page.py::test_docs_page_of_properties_is_current": (
        "python -m protocol.property_page > docs/properties.md",
    ),
    "tests/protocol/metrics/test_metrics_page.py::test_docs_page_of_metrics_is_current": (
        "python -m tests.protocol.metrics.metrics_page > docs/metrics.md",
    ),
    HERE + "test_wheel_contains_package_extras_and_entry_points": (
        *("make dist", "pip install .", "pip wheel . --no-deps"),
        *(f"pip install '.[{extra}]'" for extra in EXTRAS.split()),
    ),
    "": (
        *("make test", "make matrix", "make soak", "make versions", "pip install", "%pip install"),
        "python -m tests.simulation NAME --seed N",
        "python -m venv env && env/bin/pip install '.[spark]' venv-pack && env/bin/venv-pack -p env -o env.tar.gz",
        "python -m venv env && env/bin/pip install '.[spark,cli,notebook,tls,filter]' jupyterlab",
        *("env/bin/jupyter lab", "PYSPARK_PYTHON=./env/bin/python spark-submit --archives env.tar.gz"),
    ),
}
BENCHMARK = "python -m benchmarks.run"
# tests/cli/test_usage.py checks commands of the docs, and tests/cli/test_reference_page.py runs examples of each.
COMMAND_LINE = (
    *("pykafka ", "echo 'customer-7:paid' | pykafka ", "PYKAFKA_PROFILE=test pykafka "),
    'eval "$(pykafka completion ',
)


def test_code_blocks_of_docs_are_run_by_tests() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    calls = {(page, literal_eval(words)) for text in sources for page, words in _CALL.findall(text)}
    unclaimed = [
        (block.page, block.first_line)
        for block in blocks()
        if block.language == "python"
        and not any(page == block.page and words in block.text for page, words in calls | PYTHON.keys())
    ]
    assert unclaimed == [], "run it in a test, by block(page, words)"
    for page, words in PYTHON:
        if words:
            assert block(page, words).language == "python"
    further = {
        (block.page, block.first_line)
        for block in blocks()
        if block.language not in ("python", "sh", "console", "mermaid", "text")
    }
    assert {
        (page, line)
        for page, line in further
        if not any(line.startswith(words) for at, words in BLOCKS_NOT_RUN if at == page)
    } == set()


def test_commands_of_docs_are_run_by_tests() -> None:
    run = [command for command in commands() if not command.startswith((BENCHMARK, *COMMAND_LINE))]
    assert sorted(run) == sorted(command for of_test in COMMANDS.values() for command in of_test)


def test_tests_named_for_code_blocks_exist() -> None:
    for test in {*PYTHON.values(), *COMMANDS} - {""}:
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_makefile_commands_equal_tested_commands() -> None:
    """The demo itself runs in `test_demo`: it takes a minute, so compare the command only."""
    from tests.spark.demo.test_demo import COMMAND

    for target, words in {
        "demo": COMMAND[1:],
        "bench": ["-m", "benchmarks.run"],
        "test": ["-m", "tests.support.guarded_run"],
    }.items():
        printed = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        assert f"/python {' '.join(words)}" in printed.stdout


@pytest.mark.parametrize("command", sorted(command for command in commands() if command.startswith(BENCHMARK)))
def test_benchmarks_of_the_docs_run(command: str) -> None:
    """Parse the arguments only: a measurement takes ten minutes on an idle machine (`make bench`)."""
    options = benchmarks.parse_arguments(command.removeprefix(BENCHMARK).split())
    assert options.sections


def test_wheel_contains_package_extras_and_entry_points(tmp_path: Path) -> None:
    """Call the build backend as `pip wheel` does, but without a network."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import pyspark_kafka_source as p, protocol, spark_kafka_source.local_kafka as l; print(p.DefaultSource.name())"
    )
    isolated = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.'); {code}; print(l.__file__)"]
    printed = subprocess.run(isolated, cwd=tmp_path / "site", capture_output=True, text=True, timeout=120, check=True)
    name, file = printed.stdout.split()
    assert name == "pykafka-group"
    assert Path(file).is_relative_to(tmp_path)
    (about,) = (tmp_path / "site").glob("*.dist-info")
    extras = re.findall(r"^Provides-Extra: (.*)$", (about / "METADATA").read_text(), re.MULTILINE)
    assert {"spark", "cli", "prometheus", "opentelemetry", "azure", "aws", "google"} <= set(extras)
    assert "pykafka = spark_kafka_source.cli.__main__:main" in (about / "entry_points.txt").read_text()


# -- blocks ---------------------------------------------------------------------------------------


def test_architecture_example_reads_range_without_spark(
    kafka1: LocalKafka, topic1: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic1()
    produce(kafka1, name, range(1_000))
    places = {"127.0.0.1:9092": kafka1.bootstrap_servers, '"orders"': f'"{name}"'}
    exec(block("architecture.md", "protocol.read(").with_names(places), {})
    assert sum(map(int, capsys.readouterr().out.split())) == 1_000


@pytest.mark.timeout(600)
def test_first_query_of_readme_writes_rows_and_shows_lag(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow: two queries of README run until each has written rows."""
    orders, upper = topic1(2), topic1()
    names: dict[str, Any] = {"spark": spark}
    brokers = {"broker-1:9092": kafka1.bootstrap_servers}
    places = {**brokers, ",broker-2:9092": "", '"orders"': f'"{orders}"', "orders-upper": upper}
    text = block("README.md", "orders = (").with_names({**places, "/checkpoints": str(tmp_path)})
    exec(text.replace(f"{tmp_path}/{upper}", str(tmp_path / "upper")), names)
    query = names["query"]
    wait_until(lambda: query.lastProgress, timeout_s=240)
    produce(kafka1, orders, range(100), 2)
    wait_until(lambda: len(read_back(kafka1, upper)) == 100, timeout_s=240, every_s=0.05)
    assert {record.value for record in read_back(kafka1, upper)} == {b"%09d." % number for number in range(100)}

    query.processAllAvailable()
    listening = {**brokers, "LagListener(print)": "listener := LagListener(print)"}
    exec(block("monitoring.md", "lag_of_query(").with_names(listening), names)
    try:
        produce(kafka1, orders, range(10), 2)
        wait_until(lambda: capsys.readouterr().out, timeout_s=240)
    finally:
        spark.streams.removeListener(names["listener"])
    metrics = names["lag_of_query"](query).metrics()
    assert set(metrics) == {"minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest"}
    watched = block("monitoring.md", "watch(query").with_names({**brokers, "orders-etl.png": str(tmp_path / "lag.png")})
    exec(watched.replace("picture=", "timeout_s=0, picture="), names)
    assert (tmp_path / "lag.png").exists()
    query.stop()


@pytest.mark.timeout(600)
def test_migrating_examples_write_batches_and_updates(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    source, counts = topic1(), topic1()
    names: dict[str, Any] = {
        "rows": spark.range(30).selectExpr("cast(id % 3 as string) as key", "cast(id as string) as value"),
        "options": {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": source},
    }
    exec(block("migrating.md", 'mode("append")').text, names)
    assert len(read_back(kafka1, source)) == 30
    names["counts"] = stream(spark, kafka1, subscribe=source).groupBy("key").count()
    places = {"broker-1:9092": kafka1.bootstrap_servers, '"counts"': f'"{counts}"'}
    places["/checkpoints/counts"] = str(tmp_path)
    exec(block("migrating.md", "foreach_batch_writer(").with_names(places), names)
    query = names["query"]
    query.processAllAvailable()
    assert {(record.key, record.value) for record in read_back(kafka1, counts)} == {
        (key, b"10") for key in (b"0", b"1", b"2")
    }
    write(spark.range(1).selectExpr("'1' as key", "'x' as value"), kafka1, topic=source)
    query.processAllAvailable()
    query.stop()
    collected = [(record.key, record.value) for record in read_back(kafka1, counts)]
    assert len(collected) == 4, "only what has changed is written again"
    assert collected[-1] == (b"1", b"11")


@pytest.mark.timeout(600)
def test_documented_settings_are_accepted(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    """Session settings only apply to a new session: run that block here, and measure its effect in the benchmarks."""
    orders, copy = topic1(2), topic1()
    produce(kafka1, orders, range(10), 2)
    names: dict[str, Any] = {"spark": spark}
    exec(block("tuning.md", "unix.domain.socket").text, names)
    places = {"broker-1:9092": kafka1.bootstrap_servers, '"orders"': f'"{orders}"'}
    for example in (block("tuning.md", "values = ("), block("tuning.md", "balanced = (")):
        exec(example.with_names(places), names)
    assert names["values"].columns == ["value"]
    places = {"broker-1:9092": kafka1.bootstrap_servers, "/checkpoints/orders-copy": str(tmp_path), "orders-copy": copy}
    exec(block("tuning.md", "written = (").with_names(places), names)
    query = names["written"]
    wait_until(lambda: query.lastProgress, timeout_s=240)
    produce(kafka1, orders, range(10), 2)
    wait_until(lambda: len(read_back(kafka1, copy)) == 10, timeout_s=240, every_s=0.05)
    query.stop()
