"""Source and sink on a Spark cluster: a master and two workers, with executors in separate processes.

With a classic session, and with Spark Connect, where the session is a client of the driver's server.
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
from tests.support.documents import ROOT
from tests.support.soak import variants
from tests.support.spark_home import JVM_OPTIONS, SUBMIT_ARGUMENTS
from tests.support.topic_copies import copy_and_check

pytestmark = pytest.mark.soak

# Spark's standalone cluster. Master and workers run in the driver's JVM; they handle no rows.
CLUSTER = "local-cluster[2,1,512]"


@pytest.mark.spark
@pytest.mark.timeout(600)
@variants(("session", "master"), [("connect", CLUSTER), ("classic", CLUSTER)], ("connect", "local[2]"))
def test_source_and_sink_work_with_spark_connect_and_on_a_cluster(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str, master: str
) -> None:
    """Slow: starts a separate Spark with Spark Connect, and copies a topic with a stream and a batch."""
    if master == CLUSTER:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments())
    report = copy_and_check(kafka1, topic1, tmp_path, session, master)
    assert report["session"] == ("pyspark.sql.connect.session" if session == "connect" else "pyspark.sql.session")
    assert report["executors"] == (2 if master == CLUSTER else 1)
    assert len(report["streamed"]) >= 3


def submit_arguments(*more: str, **settings: str) -> str:
    """Return PYSPARK_SUBMIT_ARGS. `more` are spark-submit arguments; `settings` have underscores for dots."""
    properties = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": shlex.join(JVM_OPTIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # wait for both executors before the first task
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    confs = [word for key, value in properties.items() for word in ("--conf", f"{key}={value}")]
    return shlex.join([*SUBMIT_ARGUMENTS, *more, *confs, "pyspark-shell"])


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """Return a Python with all installed packages except this checkout. Nested .pth files are not read."""
    folder = tmp_path / "bare"
    venv.create(folder, with_pip=False)
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site_packages / "others.pth").write_text(f"{Path(pyarrow.__file__).parent.parent}\n")
    return folder / "bin" / "python"


@pytest.mark.spark
@pytest.mark.timeout(600)
@variants("archive", ["package", "none", "shadowed"], "package")
def test_executors_import_package_from_archive(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bare_python: Path,
    archive: str,
) -> None:
    """Follow docs/installing.md, "The package alone".

    Slow: starts a cluster of Spark, whose executors unpack the archive before the copy begins.
    """
    # If PYSPARK_DRIVER_PYTHON is set, Spark also uses it for data sources on executors.
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    # Spark passes the driver's PYTHONPATH to tasks. This relative path is empty in an executor's folder.
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.chdir(ROOT)
    if archive == "none":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(spark_executorEnv_PYTHONPATH="./pkg"))
        with pytest.raises(AssertionError, match=r"the Python of this executor .* lacks the package"):
            copy_and_check(kafka1, topic1, tmp_path, "classic", CLUSTER)
        return
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = wheel.rename(tmp_path / "pkg.zip")
    sent = ("--archives", f"{package}#pkg")
    if archive == "shadowed":
        (shadow / "protocol.py").touch()
        path = f"{shadow}:./pkg"
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(*sent, spark_executorEnv_PYTHONPATH=path))
        with pytest.raises(AssertionError, match=f"`protocol` is {shadow}/protocol.py, another package"):
            copy_and_check(kafka1, topic1, tmp_path, "classic", CLUSTER)
        return
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(*sent, spark_executorEnv_PYTHONPATH="./pkg"))
    assert copy_and_check(kafka1, topic1, tmp_path, "classic", CLUSTER)["executors"] == 2
