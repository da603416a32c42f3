"""Run one job in each deployment of a Spark: Connect, a standalone cluster, local-cluster, and a pipeline.

The job copies a topic with a stream (`deployed_job.py`). Afterwards the copy has each row once, and the group's
offsets are the ends of the logs. Servers are started from the PySpark of the package index, on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import protocol
from protocol.admin import NewTopic
from spark_kafka_source.local_kafka.cluster import free_ports
from tests.support.wait_until import attempts
from tests.versions import environments
from tests.versions.results import Run

PYTHON = "3.12"
JOB = Path(__file__).with_name("deployed_job.py")
CODE = (JOB, Path(__file__))
PARTITIONS = 3
ROWS = 3_000
LIMIT_S = 600
LIBRARIES = ("connect", "pipelines")
# The optimising compiler does not pay off for short-lived JVMs on few cores.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Missing(Exception):
    """This Spark does not have the deployment; the text is the cell of the table."""


@dataclass(frozen=True)
class Place:
    """One deployment of one Spark.

    `spark_home`: the folder `pyspark`, with `bin` and `jars`.
    `folder`: for files and logs of this deployment.
    """

    spark: str
    spark_home: Path
    python: Path
    folder: Path
    environment: dict[str, str]

    def bin(self, name: str) -> str:
        """Return the path of one of Spark's commands."""
        return str(self.spark_home / "bin" / name)

    @contextlib.contextmanager
    def process(self, name: str, command: list[str], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command, with its output in a file; afterwards kill it and its children."""
        environment = {**self.environment, **variables}
        with self.log(name).open("ab") as log, environments.process(command, environment, self.folder, log, log) as run:
            yield run

    def log(self, name: str) -> Path:
        """Return the file with the output of a process."""
        return self.folder / f"{name}.log"


@dataclass(frozen=True)
class Start:
    """How the job is started in a deployment: its command, and the settings of its session."""

    command: list[str]
    session: dict[str, Any]


@contextlib.contextmanager
def connect(place: Place) -> Iterator[Start]:
    """Start a Spark Connect server."""
    with connect_server(place) as remote:
        yield Start([str(place.python), str(JOB)], {"remote": remote})


@contextlib.contextmanager
def connect_server(place: Place) -> Iterator[str]:
    """Start a Spark Connect server; yield its address."""
    (port,) = free_ports(1)
    command = [place.bin("spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for key, value in {"address": "127.0.0.1", "port": port}.items():
        command += ["--conf", f"spark.connect.grpc.binding.{key}={value}"]
    with place.process("server", command) as server:
        wait_for(port, server)
        yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def standalone(place: Place) -> Iterator[Start]:
    """Start a master and two workers of one core each."""
    (port,) = free_ports(1)
    name, deploy = place.bin("spark-class"), "org.apache.spark.deploy"
    local = ["--host", "127.0.0.1", "--webui-port", "0", "--port"]
    with ExitStack() as stack:
        command = [name, f"{deploy}.master.Master", *local, str(port)]
        wait_for(port, stack.enter_context(place.process("master", command)))
        for number in range(2):
            sized = ["--cores", "1", "--memory", "1g", "--work-dir", str(place.folder / f"worker-{number}")]
            command = [name, f"{deploy}.worker.Worker", *local, "0", *sized, f"spark://127.0.0.1:{port}"]
            stack.enter_context(place.process(f"worker-{number}", command))
        yield Start([str(place.python), str(JOB)], {"master": f"spark://127.0.0.1:{port}", "executors": 2})


@contextlib.contextmanager
def local_cluster(place: Place) -> Iterator[Start]:
    """Let the driver start master and workers."""
    yield Start([str(place.python), str(JOB)], {"master": "local-cluster[2,1,1024]", "executors": 2})


@contextlib.contextmanager
def pipelines(place: Place) -> Iterator[Start]:
    """Start a Spark Connect server, and write the specification of a pipeline."""
    if not Path(place.bin("spark-pipelines")).exists():
        raise Missing("none before Spark 4.1")
    shutil.copy(JOB, place.folder)
    storage = (place.folder / "storage").as_uri()
    specification = {"name": "copy", "storage": storage, "libraries": [{"glob": {"include": JOB.name}}]}
    (place.folder / "spark-pipeline.yml").write_text(json.dumps(specification))
    with connect_server(place) as remote:
        yield Start([place.bin("spark-pipelines"), "run", "--remote", remote], {})


DEPLOYMENTS: dict[str, Callable[[Place], AbstractContextManager[Start]]] = {
    "connect": connect,
    "standalone": standalone,
    "local_cluster": local_cluster,
    "pipelines": pipelines,
}


def run(wheel: Path, spark: str, folder: Path, bootstrap: str) -> Run:
    """Run the job in each deployment of a Spark, with the newest packages."""
    interpreter = environments.interpreter(PYTHON)
    if interpreter is None:
        return Run(spark, PYTHON, skipped=f"no Python {PYTHON} on the PATH")
    home = environments.spark_home(spark)
    requirements = environments.packages(spark, PYTHON, oldest=False) + environments.extras(home, LIBRARIES)
    python = environments.make_environment(folder, interpreter, home, requirements, wheel)
    started = Run(spark, PYTHON, environments.versions(python))
    for name, deployment in DEPLOYMENTS.items():
        began_s = time.monotonic()
        work = folder / f"{name}-{int(time.time())}"
        work.mkdir()
        variables = {
            **environments.variables(python),
            "SPARK_HOME": str(home / "pyspark"),
            "SPARK_SUBMIT_OPTS": JVM_OPTIONS,
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
        }
        place = Place(spark, home / "pyspark", python, work, variables)
        try:
            with deployment(place) as start:
                result: dict[str, Any] = {"observed": copy_and_check(place, start, bootstrap)}
        except Missing as missing:
            result = {"missing": str(missing)}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:1000]}
        started.jobs[name] = {**result, "seconds": round(time.monotonic() - began_s)}
        if "error" not in result:
            shutil.rmtree(work)
    return started


def copy_and_check(place: Place, start: Start, bootstrap: str) -> dict[str, Any]:
    """Run the job; again, if that is to commit the last batch. Compare all rows and the group's offsets."""
    name = f"{place.spark}-{place.folder.name}"
    source, target, group = f"{name}-source", f"{name}-target", f"{name}-group"
    properties = {"bootstrap.servers": bootstrap}
    job = {
        **start.session,
        "reader": {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": source,
            "startingOffsets": "earliest",
            "kafka.group.id": group,
        },
        "writer": {"kafka.bootstrap.servers": bootstrap, "topic": target},
    }
    if start.session:  # a pipeline has its own checkpoints
        job["writer"]["checkpointLocation"] = str(place.folder / "checkpoint")
    with protocol.Admin(properties) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)])
        numbers = pa.array(range(ROWS), pa.int32())
        rows = {
            "value": numbers.cast(pa.string()),
            "partition": pa.array([n % PARTITIONS for n in range(ROWS)], pa.int32()),
        }
        protocol.write(properties, source, pa.table(rows))
        keys = [(source, number) for number in range(PARTITIONS)]
        ends = {key: offset.offset for key, offset in admin.list_offsets(dict.fromkeys(keys, protocol.LATEST)).items()}

        def committed() -> dict[tuple[str, int], int]:
            return {key: offset.offset for key, offset in admin.list_consumer_group_offsets(group).items()}

        run_job(place, start.command, job)
        at_the_end = committed() == ends
        if not at_the_end:
            run_job(place, start.command, job)
            assert committed() == ends, f"the group has {committed()}, the logs end at {ends}"
    copied = protocol.read({**properties, "isolation.level": "read_committed"}, target, columns=["value"]).read_all()
    values = sorted(int(value) for value in copied["value"].to_pylist())
    assert values == list(range(ROWS)), f"{len(values)} rows, {len(set(values))} different ones, of {ROWS}"
    return {"committed at the end": at_the_end}


def run_job(place: Place, command: list[str], job: dict[str, Any]) -> None:
    """Run the job to its end."""
    with place.process("job", command, DEPLOYED_JOB=json.dumps(job)) as process:
        process.wait(LIMIT_S)
        if process.returncode != 0:
            lines = place.log("job").read_text().strip().splitlines()
            raise AssertionError(f"exit code {process.returncode}, see {place.log('job')}: {lines[-1:]}")


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server accepts connections."""
    for _ in attempts(LIMIT_S, 0.2):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert server.poll() is None, f"the server ended with {server.returncode}"
    raise AssertionError("the server does not accept connections")
