"""The local Kafka itself: it serves, what is done to a broker happens, and nothing of it outlives its owner."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from protocol.errors import ConfigurationError, KafkaError, UsageError
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka import cluster as local_kafka
from tests.soak import SOAK
from tests.spark_home import BRIEF_LIFE


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, "it did not happen in time"
        time.sleep(0.05)


def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


def create(kafka: LocalKafka, topic: NewTopic) -> None:
    asking = admin(kafka)
    asking.create_topics([topic])[topic.topic].result(30)


def produce(kafka: LocalKafka, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def consumer(kafka: LocalKafka, group: str) -> Consumer:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    return Consumer({**config, "log_level": 0})


def values_of(kafka: LocalKafka, topic: str, count: int) -> list[str]:
    reader = consumer(kafka, "unused")
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        return [message.value().decode() for message in reader.consume(count, timeout=30)]
    finally:
        reader.close()


# -- a running cluster ------------------------------------------------------------------------


def test_three_brokers_know_each_other(kafka: LocalKafka) -> None:
    cluster = admin(kafka).list_topics(timeout=10)
    addresses = {broker_id: f"{broker.host}:{broker.port}" for broker_id, broker in cluster.brokers.items()}
    assert addresses == {broker_id: kafka.address(broker_id) for broker_id in (1, 2, 3)}
    assert kafka.bootstrap_servers == ",".join(addresses[broker_id] for broker_id in (1, 2, 3))


def test_brokers_listen_on_the_loopback_address_only(kafka: LocalKafka) -> None:
    for broker_id in kafka.broker_ids:
        sockets = psutil.Process(kafka.pid(broker_id)).net_connections()
        listening = {socket.laddr.ip.removeprefix("::ffff:") for socket in sockets if socket.status == "LISTEN"}
        assert listening == {"127.0.0.1"}


def test_brokers_start_from_the_class_archive(kafka1: LocalKafka) -> None:
    mapped = {Path(mapping.path).name for mapping in psutil.Process(kafka1.pid(1)).memory_maps()}
    assert any(name.startswith(f"kafka-{kafka1.version}-classes-") for name in mapped)


def test_a_group_is_described_by_kafkas_own_tool(kafka: LocalKafka, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka, name, "a", "b", "c")
    member = consumer(kafka, f"group-of-{name}")
    member.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    member.close()

    header, row = kafka.describe_group(f"group-of-{name}").strip().splitlines()
    columns = dict(zip(header.split(), row.split(), strict=True))
    assert (columns["CURRENT-OFFSET"], columns["LOG-END-OFFSET"], columns["LAG"]) == ("2", "3", "1")


def test_internal_topics_are_on_every_broker(kafka: LocalKafka) -> None:
    reader = consumer(kafka, "any")
    until(lambda: "__consumer_offsets" in made_by(reader))
    partitions = admin(kafka).list_topics("__consumer_offsets", timeout=10).topics["__consumer_offsets"].partitions
    reader.close()
    assert len(partitions) == 4
    assert all(len(partition.replicas) == 3 for partition in partitions.values())


def made_by(reader: Consumer) -> dict[str, object]:
    """Asks for a group's offsets, which makes the topic they live in."""
    with contextlib.suppress(KafkaException):
        reader.committed([TopicPartition("none", 0)], timeout=5)
    return dict(reader.list_topics(timeout=10).topics)


def test_a_tool_that_fails_says_why(kafka1: LocalKafka) -> None:
    with pytest.raises(KafkaError, match="no-such-option"):
        kafka1.run_tool("org.apache.kafka.tools.TopicCommand", "--no-such-option")


def test_topics_are_created_with_settings(kafka1: LocalKafka) -> None:
    kafka1.create_topic("made-by-the-tool", partitions=3, settings={"retention.ms": 12345})
    told = kafka1.run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", kafka1.bootstrap_servers, "--describe", "--topic", "made-by-the-tool"),
    )
    assert "PartitionCount: 3" in told
    assert "retention.ms=12345" in told


def test_a_topic_that_does_not_exist_is_not_created(kafka1: LocalKafka) -> None:
    kafka1_topics = admin(kafka1).list_topics("no-such-topic", timeout=10).topics
    assert kafka1_topics["no-such-topic"].error is not None


# -- what can happen to a broker --------------------------------------------------------------


# Queries see one killed in tests/spark/test_broker_outage.py.
@pytest.mark.parametrize("end", [LocalKafka.stop, LocalKafka.kill] if SOAK else [LocalKafka.stop])
def test_a_broker_comes_back_with_its_address_and_its_data(
    kafka: LocalKafka, topic: Callable[..., str], end: Callable[[LocalKafka, int], None]
) -> None:
    name, before = topic(replication_factor=3), kafka.address(2)
    produce(kafka, name, "kept")
    first_pid = kafka.pid(2)

    end(kafka, 2)
    assert kafka.pid(2) is None
    produce(kafka, name, "written while it was down")
    kafka.start(2)

    assert kafka.address(2) == before
    assert kafka.pid(2) not in (None, first_pid)
    assert values_of(kafka, name, 2) == ["kept", "written while it was down"]


def test_a_paused_broker_answers_nothing_until_it_is_resumed(kafka1: LocalKafka) -> None:
    asking = admin(kafka1)
    asking.list_topics(timeout=10)
    kafka1.pause(1)
    try:
        with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
            asking.list_topics(timeout=1)
        assert kafka1.pid(1) is not None
    finally:
        kafka1.resume(1)
    assert asking.list_topics(timeout=10).brokers.keys() == {1}


def test_a_broker_that_does_not_exist_is_named(kafka1: LocalKafka) -> None:
    with pytest.raises(UsageError, match=r"no broker 7; the brokers are \[1\]"):
        kafka1.kill(7)


# -- how a cluster is set up ------------------------------------------------------------------


@pytest.fixture(scope="module")
def special() -> Iterator[LocalKafka]:
    """One broker with everything that can be asked for."""
    with LocalKafka(
        settings={
            "message.max.bytes": 54321,
            "auto.create.topics.enable": True,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
            ' required user_alice="back\\\\slash";',
        },
        broker_settings={1: {"broker.rack": "here"}},
        listeners={"SASL": "SASL_PLAINTEXT"},
        format_arguments=["--feature", "transaction.version=1"],
        jvm_options=BRIEF_LIFE,
    ) as running:
        yield running


@pytest.mark.kafka
def test_settings_reach_the_broker(special: LocalKafka) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    asking = admin(special)
    told = asking.describe_configs([resource])[resource].result(30)
    wanted = {"message.max.bytes": "54321", "auto.create.topics.enable": "true", "broker.rack": "here"}
    assert {name: told[name].value for name in wanted} == wanted


@pytest.mark.kafka
def test_format_arguments_reach_the_storage_tool(special: LocalKafka) -> None:
    told = special.run_tool(
        "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", special.bootstrap_servers, "describe"
    )
    line = next(line for line in told.splitlines() if "transaction.version" in line)
    assert "FinalizedVersionLevel: 1" in line


@pytest.mark.kafka
@pytest.mark.parametrize(("password", "let_in"), [("back\\slash", True), ("wrong", False)])
def test_a_further_listener_has_its_own_port_and_protocol(special: LocalKafka, password: str, let_in: bool) -> None:
    who = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": password}
    where = {"bootstrap.servers": special.bootstrap_servers_of("SASL"), "security.protocol": "SASL_PLAINTEXT"}
    asking = AdminClient({**who, **where, "log_level": 0})
    if let_in:
        assert asking.list_topics(timeout=20).brokers.keys() == {1}
    else:
        with pytest.raises(KafkaException):
            asking.list_topics(timeout=2)


@pytest.mark.kafka
def test_a_setting_that_kafka_refuses_is_told_in_kafkas_words() -> None:
    with pytest.raises(ConfigurationError, match=r"broker 1 .* ended(.|\n)*num\.io\.threads: Value must be at least 1"):
        LocalKafka(settings={"num.io.threads": 0})


@pytest.mark.kafka
def test_a_port_that_was_taken_meanwhile_is_replaced(kafka1: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = int(kafka1.address(1).rpartition(":")[2])
    free_ports, asked = local_kafka.free_ports, []

    def first_a_taken_one(count: int) -> list[int]:
        asked.append(count)
        ports = free_ports(count)
        return [taken, *ports[1:]] if len(asked) == 1 else ports

    monkeypatch.setattr(local_kafka, "free_ports", first_a_taken_one)
    with LocalKafka(jvm_options=BRIEF_LIFE) as second:
        assert len(asked) == 2
        assert second.address(1) != kafka1.address(1)
        assert admin(second).list_topics(timeout=10).cluster_id != admin(kafka1).list_topics(timeout=10).cluster_id


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["3.9.1", "2.8.2"])
def test_older_versions_run(version: str) -> None:
    with LocalKafka(version=version, jvm_options=BRIEF_LIFE) as old:
        create(old, NewTopic("t", 1, 1))
        produce(old, "t", "a", "b")
        assert values_of(old, "t", 2) == ["a", "b"]
        member = consumer(old, "g")
        member.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        member.close()
        assert old.describe_group("g").split()[-3:] == ["-", "-", "-"]
        if version == "2.8.2":
            assert magic_of_the_first_record(old) == 1
            old.kill(1)
            old.start(1)  # only once ZooKeeper has let the old broker's id go


def magic_of_the_first_record(old: LocalKafka) -> int:
    """Writes to a topic of the format that Kafka 0.10 had; the format byte of what is in its log then."""
    config = {"message.format.version": "0.10.0", "flush.messages": "1"}
    create(old, NewTopic("legacy", 1, 1, config=config))
    produce(old, "legacy", "as in 2016")
    (segment,) = (old.data_folder(1) / "legacy-0").glob("*.log")
    return segment.read_bytes()[16]


# -- the end ----------------------------------------------------------------------------------

# Starts a Kafka, says what is running and where, and then waits to be ended.
OWNER = f"""
import sys, time
from spark_kafka_source.local_kafka import LocalKafka
kafka = LocalKafka(jvm_options={BRIEF_LIFE})
print(kafka.pid(1), kafka.data_folder(1).parent.parent, flush=True)
if sys.argv[1] == "return":
    sys.exit(0)
kafka.pause(1)  # a broker that does not react must be ended, too
time.sleep(600)
"""


@pytest.mark.kafka
@pytest.mark.parametrize("how", ["return", "SIGINT", "SIGTERM", "SIGKILL"])
def test_brokers_and_data_are_gone_however_their_owner_ends(how: str) -> None:
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
    if how in ("return", "SIGINT"):  # Python ended in its own order, so everything is gone before it is
        assert not alive(int(pid))
        assert not Path(folder).exists()
    until(lambda: not alive(int(pid)))
    until(lambda: not Path(folder).exists())


def alive(pid: int) -> bool:
    """A process that has ended may stay on as a zombie where nobody waits for orphans (in containers)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.kafka
def test_after_close_nothing_is_left_and_nothing_can_be_started() -> None:
    kafka = LocalKafka(jvm_options=BRIEF_LIFE)
    pid, folder = kafka.pid(1), kafka.data_folder(1)
    watchdog = kafka._watchdog
    assert watchdog is not None
    ours = {pid, watchdog.pid}
    assert ours <= {child.pid for child in psutil.Process().children(recursive=True)}

    kafka.close()
    kafka.close()

    assert not alive(pid or 0)
    assert not folder.exists()
    assert not ours & {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(UsageError, match="closed"):
        kafka.start(1)


@pytest.mark.kafka
def test_the_command_prints_the_address_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "spark_kafka_source.local_kafka", "--set", "num.io.threads=2"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        servers = running.stdout.readline().strip()
        assert AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=10).brokers.keys() == {1}
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=30)
    finally:
        running.kill()
    assert (running.returncode, output) == (0, "")
    assert "Traceback" not in errors
