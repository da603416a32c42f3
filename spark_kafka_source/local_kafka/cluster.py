"""`LocalKafka`: one or more brokers (KRaft, or ZooKeeper before Kafka 3.3) on the loopback address. Linux and macOS.

The jars are downloaded once. The brokers end, and their data is deleted, however this process ends.
"""

from __future__ import annotations

import atexit
import base64
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from protocol.admin.topics import NewTopic, create_topic
from protocol.base.clock import SYSTEM_CLOCK, Deadline
from protocol.base.condition import Lock
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ConfigurationError, DeadlineExceeded, KafkaError, ProtocolError, TransportError, UsageError
from protocol.net.byte_stream import ByteStream
from protocol.net.connect import connect
from protocol.net.connection import Connection
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.local_kafka import config, secured
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.local_kafka.config import LOOPBACK, PLAINTEXT, ClusterConfig, Node
from spark_kafka_source.local_kafka.jars import Report, class_archive, find_java, kafka_jars, to_stderr
from spark_kafka_source.local_kafka.process import JavaProcess, Watchdog, printed_lines
from spark_kafka_source.local_kafka.users import scram_credentials

if TYPE_CHECKING:
    from protocol.testing.schema_registry import FakeSchemaRegistry

DEFAULT_VERSION = "4.4.0"

_STOP_TIMEOUT_S = 30.0
_TRAINING_STOP_TIMEOUT_S = 120.0
_POLL_S = 0.05
_MAX_METADATA_BYTES = 1_048_576
# Below the systems' range for outgoing connections: such a connection cannot take a port while its broker is down, and
# no client can connect to itself.
PORTS = range(20_000, 32_000)


class LocalKafka:
    """A running Kafka cluster; `close()`, or the end of a `with` block, stops it and deletes its data. Thread-safe.

    Parameters
    ----------
    brokers : int
        Number of brokers; their ids are 1, 2, …. One is enough for versions before 3.3.
    version : str
        Version of Apache Kafka; "4.4.0", "3.9.1" and "2.8.2" are tested.
    settings : mapping, optional
        Settings of all brokers, which override `conf/kafka-broker.properties`.
    port : int, optional
        Port of the first broker's `PLAINTEXT` listener; further brokers have the following ports. Default, or 0: free
        ports.
    broker_settings : mapping, optional
        Settings of single brokers, by id: `{1: {"broker.rack": "a"}}`.
    security : str or sequence of str
        "ssl", "sasl_plaintext", "sasl_ssl" or several of them: additional listeners, named by their protocols
        ("SASL_SSL"). `client_properties("SASL_SSL")` returns the properties for clients.
    users : mapping
        Passwords by user name, for all SASL mechanisms (`users.MECHANISMS`).
    listeners : mapping, optional
        Additional listeners and their security protocols, `{"MUTUAL": "SSL"}`. Each gets a port; configure it in
        `settings` (`listener.name.mutual.…`). `PLAINTEXT` always exists.
    format_arguments : sequence of str
        Arguments of Kafka's StorageTool: `["--feature", "transaction.version=1"]`, `["--add-scram", …]`.
    jvm_options : sequence of str
        Options of the brokers' JVM, after `-Xmx512m`.
    start_timeout_s : float
        Time limit until every broker serves requests, without the download of the jars.
    registry : bool
        Start a schema registry, at `schema_registry_url`: that of `protocol.testing`, in this process and its memory.
    registry_port : int, optional
        Its port. Default: a free one.
    use_class_archive : bool
        Start with Java's archive of Kafka's classes, which halves the start time; the first start creates it.
    report : callable
        Receives lines of progress; by default they go to standard error.

    Raises
    ------
    ConfigurationError
        Java is missing, or a broker refuses its settings.
    TransportError
        The jars cannot be downloaded.
    DeadlineExceeded
        The brokers do not serve requests in time.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        security: str | Sequence[str] = "plaintext",
        users: Mapping[str, str] = secured.USERS,
        listeners: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
        jvm_options: Sequence[str] = (),
        start_timeout_s: float = 180.0,
        registry: bool = False,
        registry_port: int | None = None,
        use_class_archive: bool = True,
        report: Report = to_stderr,
    ) -> None:
        if brokers < 1:
            raise UsageError(f"a Kafka of {brokers} brokers cannot be started; brokers must be 1 or more")
        config.version_numbers(version)  # refuse a malformed version before a download
        self._chosen = {id: port + id - 1 for id in range(1, brokers + 1)} if port else {}
        _require_free([*self._chosen.values(), *([] if registry_port is None else [registry_port])])
        self._report = report
        self._start_timeout_s = start_timeout_s
        java, jars = find_java(), kafka_jars(version, report)
        self._config = ClusterConfig(
            version=version,
            cluster_id=_new_cluster_id(),
            java=java,
            jars=jars,
            class_archive=class_archive(jars, java, partial(_train, version), report) if use_class_archive else None,
            zookeeper_port=0,
            settings=_as_text(settings or {}),
            listeners={**secured.listeners_of(security), **(listeners or {})},
            format_arguments=tuple(format_arguments),
            jvm_options=tuple(jvm_options),
        )
        self._lock = Lock()
        self._closed = False
        self._owner_pid = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="spark-kafka-source-"))
        self._watchdog = Watchdog(self._folder)
        self._zookeeper: JavaProcess | None = None
        self.certificate_authority: CertificateAuthority | None = None  # of the brokers' certificates
        self.users = dict(users)
        self._nodes = _new_nodes(brokers, self._folder, broker_settings or {})
        self._processes = {id: self._process(f"broker {id}", node.folder) for id, node in self._nodes.items()}
        self._registry: FakeSchemaRegistry | None = None
        atexit.register(self.close)
        try:
            if registry or registry_port is not None:
                # Only a cluster with a registry imports it.
                from protocol.testing.schema_registry import FakeSchemaRegistry

                self._registry = FakeSchemaRegistry(port=registry_port or 0)
            self._secure()
            self._start_cluster()
        except BaseException:
            self.close()
            raise

    # -- addresses and files ------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The version of Apache Kafka."""
        return self._config.version

    @property
    def cluster_config(self) -> config.ClusterConfig:
        """The configuration shared by all brokers; for `config.tool_command`."""
        return self._config

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return sorted(self._nodes)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, running or not: `127.0.0.1:20123,127.0.0.1:20456`."""
        return self.bootstrap_servers_of(PLAINTEXT)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the addresses of all brokers on one listener."""
        return ",".join(self.address(id, listener) for id in self.broker_ids)

    def address(self, broker_id: int, listener: str = PLAINTEXT) -> str:
        """Return `host:port` of one broker. Raises `UsageError` for a listener that does not exist."""
        ports = self._node(broker_id).ports
        if listener not in ports:
            raise UsageError(f"there is no listener {listener}; the listeners are {', '.join(ports)}")
        return f"{LOOPBACK}:{ports[listener]}"

    def client_properties(self, listener: str = PLAINTEXT) -> dict[str, str]:
        """Return Kafka's properties for clients of one listener: addresses, protocol, trust store, credentials."""
        protocol = self._config.listeners.get(listener, PLAINTEXT)
        where = {"bootstrap.servers": self.bootstrap_servers_of(listener)}
        return where | secured.client_properties(protocol, self.certificate_authority, self.users)

    @property
    def registry(self) -> FakeSchemaRegistry:
        """The schema registry, with its controls. Raises `UsageError` without `registry=True`."""
        if self._registry is None:
            raise UsageError("this LocalKafka has no schema registry; start it with registry=True")
        return self._registry

    @property
    def schema_registry_url(self) -> str:
        """The address of the schema registry. Raises `UsageError` without `registry=True`."""
        return self.registry.url

    def pid(self, broker_id: int) -> int | None:
        """Return the process id of a broker, or None while it is down."""
        return self._process_of(broker_id).pid

    def log(self, broker_id: int) -> Path:
        """Return the broker's log file; `close` deletes it."""
        return self._process_of(broker_id).log

    def data_folder(self, broker_id: int) -> Path:
        """Return the folder of the broker's partitions: `TOPIC-PARTITION` folders with segments."""
        return self._node(broker_id).data_folder

    # -- stopping and starting brokers --------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """End a broker by SIGKILL, without notice to the other brokers."""
        with self._lock:
            self._process_of(broker_id).kill()

    def stop(self, broker_id: int) -> None:
        """End a broker by SIGTERM: it transfers its leaderships first. SIGKILL follows after 30 s."""
        with self._lock:
            self._process_of(broker_id).stop(_STOP_TIMEOUT_S)

    def start(self, *broker_ids: int) -> None:
        """Start brokers again, on the same ports with the same data, and wait until they serve requests.

        If most brokers are down, start several in one call: a single one waits for a majority of the controllers.
        """
        with self._lock:
            if self._closed:
                raise UsageError("this LocalKafka is closed")
            nodes = [self._node(broker_id) for broker_id in broker_ids]
            up = {id for id, process in self._processes.items() if process.running}
            deadline = Deadline.after_ms(self._start_timeout_s * 1000)
            while True:
                for node in nodes:
                    if not self._processes[node.id].running:
                        self._start_broker(node)
                try:
                    return self._wait_until_serving(up | set(broker_ids), deadline)
                except ConfigurationError as error:
                    # ZooKeeper keeps the id of a killed broker until its session ends.
                    if "NodeExists" not in error.message or deadline.passed:
                        raise

    def pause(self, broker_id: int) -> None:
        """Pause a broker by SIGSTOP: its connections stay open, and it sends no replies."""
        self._process_of(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        """Resume a paused broker by SIGCONT."""
        self._process_of(broker_id).signal(signal.SIGCONT)

    # -- Kafka's own tools --------------------------------------------------------------------

    def run_tool(self, class_name: str, *arguments: str, input_text: str = "", timeout_s: float = 60.0) -> str:
        """Run one of Kafka's Java tools and return its standard output.

        Raises
        ------
        KafkaError
            The tool failed; the message has its output.
        DeadlineExceeded
            The tool did not end in time.

        Examples
        --------
        `run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap_servers, "--list")`
        """
        command = config.tool_command(self._config, class_name, *arguments)
        try:
            ended = subprocess.run(command, input=input_text, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(f"{class_name} did not end in {timeout_s:g} s") from error
        if ended.returncode != 0:
            output = "\n".join([ended.stdout, *printed_lines(ended.stderr)]).strip()[-3000:]
            raise KafkaError(f"{class_name} failed with exit code {ended.returncode}:\n{output}")
        return ended.stdout

    def describe_group(self, group: str, *arguments: str) -> str:
        """Return the output of `kafka-consumer-groups.sh --describe --group GROUP` with further `arguments`."""
        tool = config.tool_class(
            self._config,
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "kafka.admin.ConsumerGroupCommand",
        )
        where = ("--bootstrap-server", self.bootstrap_servers)
        # By default the tool gives up each request after 5 s, and then ends without an error code.
        return self.run_tool(tool, *where, "--timeout", "30000", "--describe", "--group", group, *arguments)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, by default replicated to every broker. Raises `BrokerError` (TOPIC_ALREADY_EXISTS, …)."""
        topic = NewTopic(name, partitions, replication_factor or len(self._nodes), _as_text(settings or {}))
        with Client(parse_client({"bootstrap.servers": self.bootstrap_servers})) as client:
            create_topic(client, topic)

    # -- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all brokers and delete their data. Idempotent."""
        if self._closed or os.getpid() != self._owner_pid:  # a forked child inherits the exit handler
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._registry is not None:
            self._registry.stop()
        # No orderly shutdown: the data is deleted anyway.
        processes = self._with_zookeeper(self._processes)
        for process in processes:
            process.signal(signal.SIGKILL)
        for process in processes:
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._watchdog.close()

    def __enter__(self) -> LocalKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalKafka {self.version} at {self.bootstrap_servers}{' (closed)' if self._closed else ''}>"

    # -- starting -----------------------------------------------------------------------------

    def _secure(self) -> None:
        if sasl := secured.sasl_listeners(self._config.listeners):
            self._config = replace(
                self._config,
                settings={**secured.sasl_settings(sasl, self.users), **self._config.settings},
                format_arguments=(*scram_credentials(self.users), *self._config.format_arguments),
            )
        if secured.uses_tls(self._config.listeners):
            self.certificate_authority = CertificateAuthority(self._folder / "certificates")
            settings = {**secured.tls_settings(self.certificate_authority), **self._config.settings}
            self._config = replace(self._config, settings=settings)

    def _start_cluster(self) -> None:
        started_s = time.monotonic()
        deadline = Deadline.after_ms(self._start_timeout_s * 1000)
        count = len(self._nodes)
        self._report(f"starting Apache Kafka {self.version} with {count} broker{'s' if count > 1 else ''}")
        try:
            self._start_processes()
            self._wait_until_serving(set(self._nodes), deadline)
        except ConfigurationError as error:
            if "Address already in use" not in error.message:
                raise
            # Another process took a port between the check and the broker's start. Retry with other ports.
            self._forget_everything()
            self._start_processes()
            self._wait_until_serving(set(self._nodes), deadline)
        self._report(f"Apache Kafka serves at {self.bootstrap_servers} after {time.monotonic() - started_s:.1f} s")

    def _start_processes(self) -> None:
        names = [PLAINTEXT, *self._config.listeners]
        ports = iter(free_ports(len(self._nodes) * (len(names) + 1) + 1))
        self._nodes = {
            id: replace(
                node, ports={name: next(ports) for name in names} | self._chosen_port(id), controller_port=next(ports)
            )
            for id, node in self._nodes.items()
        }
        self._config = replace(self._config, zookeeper_port=next(ports))
        if not self._config.kraft:
            self._start_zookeeper()
        for node in self._nodes.values():
            self._start_broker(node)

    def _chosen_port(self, broker_id: int) -> dict[str, int]:
        return {PLAINTEXT: self._chosen[broker_id]} if self._chosen else {}

    def _start_zookeeper(self) -> None:
        folder = self._folder / "zookeeper"
        self._zookeeper = self._process("ZooKeeper", folder)
        config.write_properties(folder / "zookeeper.properties", config.zookeeper_properties(self._config, folder))
        self._zookeeper.start(config.zookeeper_command(self._config, folder))

    def _start_broker(self, node: Node) -> None:
        properties = config.broker_properties(self._config, node, list(self._nodes.values()))
        config.write_properties(node.folder / "server.properties", properties)
        self._processes[node.id].start(config.broker_command(self._config, node))

    def _process(self, name: str, folder: Path) -> JavaProcess:
        folder.mkdir(parents=True, exist_ok=True)
        return JavaProcess(name, folder / "server.log", self._watchdog)

    def _forget_everything(self) -> None:
        for process in self._with_zookeeper(self._processes):
            process.kill()
            shutil.rmtree(process.log.parent, ignore_errors=True)
            process.log.parent.mkdir()

    def _wait_until_serving(self, ids: set[int], deadline: Deadline) -> None:
        """Wait until the metadata of each of these brokers has all of them and a controller."""
        for id in sorted(ids):
            while not self._sees(id, ids):
                self._require_running(ids)
                if deadline.passed:
                    raise DeadlineExceeded(
                        f"broker {id} of the local Kafka {self.version} at {self.address(id)} does not serve after "
                        f"{self._start_timeout_s:g} s; its log ends:\n{self._processes[id].log_excerpt()}"
                    )
                time.sleep(_POLL_S)

    def _require_running(self, ids: set[int]) -> None:
        for process in self._with_zookeeper(ids):
            if not process.running:
                raise ConfigurationError(
                    f"{process.name} of the local Kafka {self.version} ended while it started; its log says:\n"
                    f"{process.log_excerpt()}"
                )

    def _sees(self, broker_id: int, expected: set[int]) -> bool:
        """Return True if the metadata of one broker has these brokers and a controller."""
        node = self._nodes[broker_id]
        deadline = Deadline.after_ms(2_000)
        try:
            # Compare the cluster id, since a broker of another cluster may have taken the port.
            cluster_id = config.parse_properties(node.meta_properties.read_text())["cluster.id"]
            stream = ByteStream(connect(LOOPBACK, node.ports[PLAINTEXT], deadline), LOOPBACK)
        except (OSError, KeyError, TransportError):
            return False
        connection = Connection(stream, "local-kafka", clock=SYSTEM_CLOCK, max_response_bytes=_MAX_METADATA_BYTES)
        try:
            reply = connection.send(METADATA, 2, {"topics": []}, deadline).result(deadline)
        except (TransportError, ProtocolError):
            return False
        finally:
            connection.close()
        present = {broker["node_id"] for broker in reply["brokers"]}
        return reply["cluster_id"] == cluster_id and reply["controller_id"] >= 0 and expected <= present

    def _process_of(self, broker_id: int) -> JavaProcess:
        return self._processes[self._node(broker_id).id]

    def _with_zookeeper(self, ids: Iterable[int]) -> list[JavaProcess]:
        """Return the processes of these brokers, and ZooKeeper's if there is one."""
        return [*(self._processes[id] for id in ids), *([self._zookeeper] if self._zookeeper else [])]

    def _node(self, broker_id: int) -> Node:
        if broker_id not in self._nodes:
            raise UsageError(f"there is no broker {broker_id}; the brokers are {self.broker_ids}")
        return self._nodes[broker_id]


def _train(version: str, archive: Path) -> None:
    """Start and stop one broker, whose JVM then writes the archive of its loaded classes."""
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    with LocalKafka(version=version, jvm_options=options, use_class_archive=False, report=lambda _: None) as training:
        # The JVM writes the archive when it ends; an incomplete archive must not be used.
        if not training._processes[1].stop(_TRAINING_STOP_TIMEOUT_S):
            raise DeadlineExceeded(f"a broker did not write {archive} in {_TRAINING_STOP_TIMEOUT_S:g} s")


def _as_text(settings: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}


def _new_cluster_id() -> str:
    """Return a random id: 16 bytes in URL-safe base64, without a leading "-" as in command line options."""
    while (id := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return id


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback address that are not in use."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port):
            free.append(port)
        if len(free) == count:
            return free
    raise KafkaError(f"this machine has no {count} free ports between {PORTS.start} and {PORTS.stop}")


def _new_nodes(count: int, folder: Path, settings: Mapping[int, Mapping[str, str]]) -> dict[int, Node]:
    ids = range(1, count + 1)
    return {id: Node(id, folder / f"broker-{id}", {}, 0, _as_text(settings.get(id, {}))) for id in ids}


def _require_free(ports: Sequence[int]) -> None:
    if taken := [port for port in ports if not _is_free(port)]:
        raise ConfigurationError(
            f"port {taken[0]} of {LOOPBACK} cannot be used: it is in use, or needs root. "
            "Choose another port, or none for a free one"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except (OSError, OverflowError):
            return False
    return True
