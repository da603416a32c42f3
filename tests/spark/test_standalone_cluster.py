"""Source and sink on a Spark cluster: a master and two workers, with executors in separate processes.

With Spark Connect, where the session is only a client of the server that has the driver's JVM, and without.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow
import pytest

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.documents import ROOT
from tests.soak import variants
from tests.spark_home import JVM_OPTIONS, SUBMIT_ARGUMENTS
from tests.topic_copies import copy_and_check

pytestmark = pytest.mark.soak

# Spark's own standalone cluster. Master and workers are in the driver's JVM: none of them ever has a row.
CLUSTER = "local-cluster[2,1,512]"


@pytest.mark.spark
@pytest.mark.timeout(600)
@variants("session", ["connect", "classic"], "connect")
def test_source_and_sink_work_on_cluster_of_two_workers(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments())
    report = copy_and_check(kafka1, topic1, tmp_path, session, CLUSTER)
    assert report["session"] == ("pyspark.sql.connect.session" if session == "connect" else "pyspark.sql.session")
    assert report["executors"] == 2
    assert len(report["streamed"]) >= 3


def submit_arguments(*more: str, **settings: str) -> str:
    """`more` are arguments of spark-submit; `settings` have underscores for dots."""
    given = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": shlex.join(JVM_OPTIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both executors are there
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    confs = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    return shlex.join([*SUBMIT_ARGUMENTS, *more, *confs, "pyspark-shell"])


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with all packages of this one, but for the checkout: a path file within a path file is not read."""
    folder = tmp_path / "bare"
    venv.create(folder, with_pip=False)
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site_packages / "others.pth").write_text(f"{Path(pyarrow.__file__).parent.parent}\n")
    return folder / "bin" / "python"


@pytest.mark.spark
@pytest.mark.timeout(600)
@variants("archive", ["package", "none"], "package")
def test_executors_import_package_from_archive(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bare_python: Path,
    archive: str,
) -> None:
    """As in docs/installing.md, "The package alone"."""
    # Spark runs data sources by the driver's Python if that is set, on executors, too.
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    # Spark hands the driver's PYTHONPATH on to the tasks. In the folder of an executor this one has nothing.
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.chdir(ROOT)
    if archive == "none":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(spark_executorEnv_PYTHONPATH="./pkg"))
        with pytest.raises(AssertionError, match=r"the Python of this executor .* lacks the package"):
            copy_and_check(kafka1, topic1, tmp_path, "classic", CLUSTER)
        return
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = wheel.rename(tmp_path / "pkg.zip")
    sent = ("--archives", f"{package}#pkg")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(*sent, spark_executorEnv_PYTHONPATH="./pkg"))
    assert copy_and_check(kafka1, topic1, tmp_path, "classic", CLUSTER)["executors"] == 2
