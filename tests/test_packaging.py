"""Wheel and source distribution: contents and metadata. The wheel, in an empty environment, runs the README's job.

Installing needs the package index and takes minutes, so only `make soak` does it. It uses the Pythons of
SPARK_KAFKA_SOURCE_PYTHONS, separated by colons; by default the one that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import warnings
import zipfile
from email import message_from_string
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pyspark.sql.pandas.utils import require_minimum_pandas_version

import protocol
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.protocol.fetch.consuming import produce
from tests.support.documents import block
from tests.support.read_back import read_back
from tests.support.soak import SOAK

PYTHONS = os.environ.get("SPARK_KAFKA_SOURCE_PYTHONS", sys.executable).split(":")
# Prefixes of environment variables of this test run, which the installed wheel must not need.
_OURS = ("PYTHON", "PYSPARK", "SPARK_", "VIRTUAL_ENV")


def build(folder: Path, *targets: str, source: Path = ROOT) -> Path:
    """Call the build backend, as `pip wheel` and `python -m build` do, but without a network; return the only file."""
    chosen = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *chosen, "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, timeout=120, check=True)
    (file,) = folder.iterdir()
    return file


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(file.read(name).decode())


def test_wheel_has_version_license_and_classifiers(tmp_path: Path) -> None:
    about = metadata(build(tmp_path, "wheel"))
    assert about["Version"] == protocol.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert about["Description-Content-Type"] == "text/markdown"
    pythons = {
        classifier.rpartition(" ")[2] for classifier in about.get_all("Classifier") if "Python :: 3." in classifier
    }
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons


def test_extra_notebook_brings_a_pandas_that_pyspark_supports(tmp_path: Path) -> None:
    required = map(Requirement, metadata(build(tmp_path, "wheel")).get_all("Requires-Dist", []))
    (requirement,) = (requirement for requirement in required if requirement.name == "pandas")
    assert requirement.specifier.contains(version("pandas"))
    assert not requirement.specifier.contains("3.0.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_minimum_pandas_version()  # called by every start of PySpark


def test_wheel_from_source_distribution_equals_wheel_from_checkout(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path / "source", "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("spark_kafka_source-*")
    assert (unpacked / "SECURITY.md").is_file()
    wheels = build(tmp_path / "a", "wheel", source=unpacked), build(tmp_path / "b", "wheel")
    first, second = ({info.filename: info.CRC for info in zipfile.ZipFile(wheel).infolist()} for wheel in wheels)
    assert first == second
    assert "spark_kafka_source/conf/spark-defaults.conf" in first


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SOAK, reason="downloads packages; run by `make soak`")
@pytest.mark.parametrize("python", PYTHONS)
def test_wheel_in_empty_environment_runs_first_query_of_readme(
    python: str, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    wheel = build(tmp_path / "dist", "wheel")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # As in an activated environment: Spark's workers run the python3 of PATH.
    path = os.pathsep.join((str(tmp_path / "env" / "bin"), os.environ["PATH"]))
    environment = {**clean, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}

    def run(*command: str) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1_500, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    run(python, "-m", "venv", "env")
    installed = str(tmp_path / "env" / "bin" / "python")
    run(installed, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[spark,cli]")

    orders, upper = topic1(2), topic1()
    produce(kafka1, orders, range(100), 2)
    places = {"broker-1:9092,broker-2:9092": kafka1.bootstrap_servers, "/checkpoints": str(tmp_path)}
    text = block("README.md", "orders = (").with_names(
        {**places, '"orders"': f'"{orders}"', '"orders-upper"': f'"{upper}"'}
    )
    job = f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
{text.replace(".load()", '.option("startingOffsets", "earliest").load()')}
query.processAllAvailable()
query.stop()
spark.stop()
"""
    (tmp_path / "job.py").write_text(job)
    run(installed, "job.py")
    assert {record.value for record in read_back(kafka1, upper)} == {b"%09d." % number for number in range(100)}
    shown = run(str(tmp_path / "env" / "bin" / "pykafka"), "doctor", "--bootstrap-server", kafka1.bootstrap_servers)
    assert "failed" not in shown
    assert run(str(tmp_path / "env" / "bin" / "pykafka"), "--version").endswith(f" {protocol.__version__}\n")
