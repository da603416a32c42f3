"""Source and sink on a Spark cluster: a master and two workers, with executors that are processes of their own."""

from __future__ import annotations

import json
import shlex
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.cluster import free_ports
from spark_kafka_source.local_kafka.process import JavaProcess, Watchdog
from tests.conftest import TopicFactory
from tests.spark_home import JVM_OPTIONS, SUBMIT_ARGUMENTS
from tests.topic_copies import copy_and_check

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
HOST = "127.0.0.1"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The master's address, `spark://127.0.0.1:PORT`, once both workers are registered."""
    monkeypatch.setenv("SPARK_DAEMON_MEMORY", "512m")
    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", shlex.join(JVM_OPTIONS))
    folder = tmp_path / "cluster"
    watchdog = Watchdog(folder)  # ends them if these tests are killed
    master, *workers = (daemon(name, folder, watchdog) for name in ("master", "worker-1", "worker-2"))
    port, web_port = free_ports(2)
    address = f"spark://{HOST}:{port}"
    try:
        master.start(command("master.Master", "--port", str(port), "--webui-port", str(web_port)))
        for worker in workers:
            resources = ["--cores", "1", "--memory", "1g", "--work-dir", str(worker.log.parent)]
            worker.start(command("worker.Worker", "--webui-port", "0", *resources, address))
        wait_for_workers(web_port, [master, *workers])
        yield address
    finally:
        for each in (*workers, master):
            each.stop(20)  # a worker takes its executors with it
        watchdog.close()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_source_and_sink_work_on_a_cluster_of_two_workers(
    kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": shlex.join(JVM_OPTIONS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both executors are there
    }
    arguments = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join([*SUBMIT_ARGUMENTS, *arguments, "pyspark-shell"]))
    report = copy_and_check(kafka1, topic1, tmp_path, cluster)
    assert report["executors"] == 2


def daemon(name: str, folder: Path, watchdog: Watchdog) -> JavaProcess:
    (folder / name).mkdir(parents=True)
    return JavaProcess(name, folder / name / "log", watchdog)


def command(class_name: str, *arguments: str) -> list[str]:
    return [SPARK_CLASS, f"org.apache.spark.deploy.{class_name}", "--host", HOST, *arguments]


def wait_for_workers(web_port: int, daemons: Sequence[JavaProcess]) -> None:
    give_up_s = time.monotonic() + 120
    while alive_workers(web_port) < len(daemons) - 1:
        for each in daemons:
            assert each.running, f"{each.name} ended:\n{each.last_words()}"
        assert time.monotonic() < give_up_s, "\n".join(f"{each.name}: {each.last_words()}" for each in daemons)
        time.sleep(0.1)


def alive_workers(web_port: int) -> int:
    """As the master's web page has it; 0 while there is no such page, or another one in its place."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{web_port}/json/", timeout=5) as reply:
            return int(json.load(reply)["aliveworkers"])
    except (OSError, json.JSONDecodeError):
        return 0
