"""`make demo` from the command line: a short run, and the error without Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.soak import SOAK
from tests.support.spark_home import BRIEF_LIFE

pytestmark = pytest.mark.soak

COMMAND = [sys.executable, "-m", "spark_kafka_source.demo"]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("security", ["plaintext", *(["sasl_ssl"] if SOAK else [])])
def test_demo_ends_with_correct_results_lag_zero_and_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, security: str
) -> None:
    """Slow: starts a separate Kafka and Spark, as a user does, and runs Kafka's tool."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(BRIEF_LIFE))
    brokers = "3" if SOAK else "1"
    picture = tmp_path / "demo.svg"
    settings = ["--seconds", "5", "--rate", "200", "--security", security, "--picture", str(picture)]
    command = [*COMMAND, "--brokers", brokers, *settings]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    sent = number(r"no more orders: ([\d,]+) were sent", ended.stdout)
    batches = batch_rows(ended.stdout)
    assert len(batches) > 2
    assert sum(row["orders"] for row in batches) == sent > 5 * 200
    # The committed offset is fetched when the row is shown: by then a later batch may be complete.
    assert all(max(row["committed"], row["read up to"]) <= row["log end"] for row in batches)
    assert all(row["lag"] == row["log end"] - row["committed"] for row in batches)
    assert {row["log end"] for row in batches[-1:]} == {sent}
    results = number(r"all ([\d,]+) sums of \d+ windows equal the orders sent", ended.stdout)
    assert results == sum(row["results"] for row in batches) > 0
    assert len(re.findall(r"^orders-etl +orders +\d +(\d+) +\1 +0 ", ended.stdout, re.MULTILINE)) == 6
    assert "lag 0 on all 6 partitions" in ended.stdout
    assert ended.stdout.endswith(f": {picture}\n")
    assert "lag in seconds" in picture.read_text()


def test_demo_without_java_fails_with_one_line(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    ended = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 1
    assert ended.stderr == ""
    (line,) = ended.stdout.splitlines()
    assert "No java on PATH" in line
    assert "install it" in line


def batch_rows(output: str) -> list[dict[str, int]]:
    """Parse the table of batches into rows by column name."""
    lines = output.splitlines()
    header = next(line for line in lines if line.split()[:1] == ["batch"])
    names = re.split(r"  +", header.strip())
    rows = (re.fullmatch(r" *[\d.]+ s ((?: +[\d,]+)+)", line) for line in lines)
    return [
        dict(zip(names, (int(cell.replace(",", "")) for cell in row[1].split()), strict=True)) for row in rows if row
    ]


def number(pattern: str, output: str) -> int:
    match = re.search(pattern, output)
    assert match, f"{pattern} is not in\n{output}"
    return int(match[1].replace(",", ""))
