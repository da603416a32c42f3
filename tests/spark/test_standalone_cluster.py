"""Source and sink on a Spark cluster: a master and two workers, with executors in separate processes.

The session is a client of Spark Connect's server on the driver; in `make soak` also a classic one.
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
@variants(
    ("session", "archive"),
    [("connect", "package"), ("classic", "package"), ("classic", "none"), ("classic", "shadowed")],
    ("connect", "package"),
)
def test_source_and_sink_work_on_a_cluster_with_the_package_as_archive(
    kafka1: LocalKafka,
    topic1: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bare_python: Path,
    session: str,
    archive: str,
) -> None:
    """Follow docs/installing.md, "The package alone".

    Slow: starts Spark Connect and a cluster, whose executors unpack the archive before a stream and a batch copy.
    """
    # If PYSPARK_DRIVER_PYTHON is set, Spark also uses it for data sources on executors.
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    # Spark passes the driver's PYTHONPATH to tasks. This relative path is empty in an executor's folder.
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.chdir(ROOT)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    sent = () if archive == "none" else ("--archives", f"{wheel.rename(tmp_path / 'pkg.zip')}#pkg")
    path, shadow = "./pkg", tmp_path / "shadow"
    if archive == "shadowed":
        shadow.mkdir()
        (shadow / "protocol.py").touch()
        path = f"{shadow}:./pkg"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submit_arguments(*sent, spark_executorEnv_PYTHONPATH=path))
    errors = {
        "none": "the Python of this executor .* lacks the package",
        "shadowed": f"`protocol` is {shadow}/protocol.py, another package",
    }
    if archive in errors:
        with pytest.raises(AssertionError, match=errors[archive]):
            copy_and_check(kafka1, topic1, tmp_path, session, CLUSTER)
        return
    report = copy_and_check(kafka1, topic1, tmp_path, session, CLUSTER)
    assert report["session"] == ("pyspark.sql.connect.session" if session == "connect" else "pyspark.sql.session")
    assert report["executors"] == 2
    assert len(report["streamed"]) >= 3
