"""A local Kafka: it serves clients, brokers can be stopped and restarted, and nothing is left after its owner ends."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from protocol.errors import ConfigurationError, KafkaError, UsageError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka import cluster as local_kafka
from spark_kafka_source.local_kafka.__main__ import main
from tests.support.librdkafka import admin, use
from tests.support.soak import SOAK
from tests.support.spark_home import BRIEF_LIFE
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

# -- a running cluster ------------------------------------------------------------------------


def test_brokers_map_class_archive(kafka1: LocalKafka) -> None:
    mapped = {Path(mapping.path).name for mapping in psutil.Process(kafka1.pid(1)).memory_maps()}
    assert any(name.startswith(f"kafka-{kafka1.version}-classes-") for name in mapped)


def test_failed_tool_raises_its_output(kafka1: LocalKafka) -> None:
    with pytest.raises(KafkaError, match="no-such-option"):
        kafka1.run_tool("org.apache.kafka.tools.TopicCommand", "--no-such-option")


# -- what can happen to a broker --------------------------------------------------------------


def test_paused_broker_responds_after_resume_only(kafka1: LocalKafka) -> None:
    asking = admin(kafka1)
    asking.list_topics(timeout=30)
    kafka1.pause(1)
    try:
        with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
            asking.list_topics(timeout=1)
        assert kafka1.pid(1) is not None
    finally:
        kafka1.resume(1)
    assert asking.list_topics(timeout=30).brokers.keys() == {1}


# -- how a cluster is set up ------------------------------------------------------------------


@pytest.fixture(scope="module")
def special(kafka1: LocalKafka) -> Iterator[LocalKafka]:
    """A broker with all options. Another process takes the first free port before the broker binds it."""
    taken = int(kafka1.address(1).rpartition(":")[2])
    free_ports, requested = local_kafka.free_ports, []

    def first_a_taken_one(count: int) -> list[int]:
        requested.append(count)
        ports = free_ports(count)
        return [taken, *ports[1:]] if len(requested) == 1 else ports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_kafka, "free_ports", first_a_taken_one)
        running = LocalKafka(
            settings={
                "message.max.bytes": 54321,
                "auto.create.topics.enable": True,
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
                ' required user_alice="back\\\\slash";',
            },
            broker_settings={1: {"broker.rack": "here"}},
            listeners={"SASL": "SASL_PLAINTEXT"},
            port=0,
            registry=True,
            format_arguments=["--feature", "transaction.version=1"],
            jvm_options=BRIEF_LIFE,
        )
    with running:
        assert len(requested) == 2
        yield running


def test_port_taken_before_start_is_replaced(kafka1: LocalKafka, special: LocalKafka) -> None:
    assert special.address(1) != kafka1.address(1)
    assert admin(special).list_topics(timeout=30).cluster_id != admin(kafka1).list_topics(timeout=30).cluster_id


@pytest.mark.kafka
def test_settings_reach_the_broker(special: LocalKafka) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    asking = admin(special)
    configs = asking.describe_configs([resource])[resource].result(30)
    expected = {"message.max.bytes": "54321", "auto.create.topics.enable": "true", "broker.rack": "here"}
    assert {name: configs[name].value for name in expected} == expected


@pytest.mark.kafka
def test_format_arguments_reach_the_storage_tool(special: LocalKafka) -> None:
    output = special.run_tool(
        "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", special.bootstrap_servers, "describe"
    )
    line = next(line for line in output.splitlines() if "transaction.version" in line)
    assert "FinalizedVersionLevel: 1" in line


@pytest.mark.kafka
@pytest.mark.parametrize(("password", "let_in"), [("back\\slash", True), ("wrong", False)])
def test_additional_listener_has_own_port_and_protocol(special: LocalKafka, password: str, let_in: bool) -> None:
    who = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": password}
    where = {"bootstrap.servers": special.bootstrap_servers_of("SASL"), "security.protocol": "SASL_PLAINTEXT"}
    asking = AdminClient({**who, **where, "log_level": 0})
    if let_in:
        assert asking.list_topics(timeout=20).brokers.keys() == {1}
    else:
        with pytest.raises(KafkaException):
            asking.list_topics(timeout=2)


def test_schema_registry_serves_confluents_client(special: LocalKafka) -> None:
    client = SchemaRegistryClient({"url": special.schema_registry_url})
    schema_id = client.register_schema("orders-value", Schema('"string"', "AVRO"))
    assert client.get_latest_version("orders-value").schema_id == schema_id
    assert special.registry.requests


def test_close_ends_all_processes_and_refuses_start(special: LocalKafka) -> None:
    pid, folder = special.pid(1), special.data_folder(1)
    children = psutil.Process().children(recursive=True)
    (watchdog,) = (child.pid for child in children if Path(command_line(child)[-1]) in folder.parents)
    ours = {pid, watchdog}
    assert ours <= {child.pid for child in children}

    special.close()
    special.close()
    special.kill(1)

    assert not alive(pid or 0)
    assert not folder.exists()
    assert not ours & {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(UsageError, match="closed"):
        special.start(1)


@pytest.mark.kafka
def test_refused_setting_fails_with_message_of_broker() -> None:
    with pytest.raises(ConfigurationError, match=r"broker 1 .* ended(.|\n)*num\.io\.threads: Value must be at least 1"):
        LocalKafka(settings={"num.io.threads": 0})


# tests/spark/task/test_legacy_messages.py runs 2.8 with ZooKeeper; `make matrix` runs four versions.
@pytest.mark.skipif(not SOAK, reason="another version is run by another test; `make soak` runs this one, too")
@pytest.mark.kafka
def test_older_kafka_version_starts() -> None:
    with LocalKafka(version="3.9.1", jvm_options=BRIEF_LIFE) as old:
        use(old)


# -- the end ----------------------------------------------------------------------------------

# Starts a Kafka, prints the broker's pid and the data folder, and ends in the way of its argument.
OWNER = f"""
import signal, sys
from spark_kafka_source.local_kafka import LocalKafka
kafka = LocalKafka(jvm_options={BRIEF_LIFE})
print(kafka.pid(1), kafka.data_folder(1).parent.parent, flush=True)
if sys.argv[1] == "return":
    sys.exit(0)
kafka.pause(1)  # a broker that does not react must be ended, too
signal.pause()
"""


@pytest.mark.kafka
# Python cannot handle SIGKILL; the test of the command covers SIGINT. `make soak` tries all.
@pytest.mark.parametrize("how", ["SIGKILL", *(["return", "SIGINT", "SIGTERM"] if SOAK else [])])
def test_brokers_and_data_are_removed_after_any_end_of_owner(how: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert how == "return" or psutil.pid_exists(int(pid))
        if how != "return":
            owner.send_signal(signal.Signals[how])
        owner.wait(30)
    finally:
        owner.kill()
    if how in ("return", "SIGINT"):  # Python has shut down in order, so its cleanup has run
        assert not alive(int(pid))
        assert not Path(folder).exists()
    wait_until(lambda: not alive(int(pid)))
    wait_until(lambda: not Path(folder).exists())


def alive(pid: int) -> bool:
    """A terminated process may remain as a zombie if no process waits for orphans (in containers)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line, of at least one word; children of earlier tests may have ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline() or [""]
    return [""]


@pytest.mark.kafka
def test_command_prints_address_and_ends_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(BRIEF_LIFE))
    command = [sys.executable, "-m", "spark_kafka_source.local_kafka", "--set", "num.io.threads=2", "--security", "ssl"]
    port, registry_port = local_kafka.free_ports(2)
    command += ["--port", str(port), "--topic", "orders:3", "--topic", "payments"]
    command += ["--registry-port", str(registry_port)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        servers = running.stdout.readline().strip()
        assert servers == f"127.0.0.1:{port}"
        cluster = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=30)
        assert cluster.brokers.keys() == {1}
        assert {name: len(cluster.topics[name].partitions) for name in cluster.topics} == {"orders": 3, "payments": 1}
        url = f"http://127.0.0.1:{registry_port}"
        assert running.stdout.readline() == f"schema.registry.url={url}\n"
        assert SchemaRegistryClient({"url": url}).get_subjects() == []
        # The properties for clients of the TLS listener follow.
        names = [running.stdout.readline().partition("=")[0] for _ in range(4)]
        assert names == ["bootstrap.servers", "security.protocol", "ssl.truststore.type", "ssl.truststore.location"]
        children = psutil.Process(running.pid).children(recursive=True)
        (broker,) = (process for process in children if Path(command_line(process)[0]).name == "java")
        folder = Path(command_line(broker)[-1]).parent.parent
        assert folder.exists()
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=30)
    finally:
        running.kill()
    assert (running.returncode, output) == (0, "")
    assert not alive(broker.pid)
    assert not folder.exists()
    assert "Traceback" not in errors


def test_unknown_listener_is_refused_with_those_that_exist(kafka1: LocalKafka) -> None:
    with pytest.raises(UsageError, match="no listener sasl_ssl; the listeners are PLAINTEXT"):
        kafka1.client_properties("sasl_ssl")


def test_missing_schema_registry_is_refused_with_the_parameter(kafka1: LocalKafka) -> None:
    with pytest.raises(UsageError, match="registry=True"):
        _ = kafka1.schema_registry_url


@pytest.mark.parametrize("topic", ["orders:", ":3", "orders:0", "orders:x"])
def test_command_with_wrong_topic_is_refused(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--topic", topic])
    assert "such as orders:3" in capsys.readouterr().err


def test_port_in_use_is_refused_before_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err
