"""What a local broker is started with: its properties and its command line. Pure: nothing is started or opened here.

Called by `cluster`. Knows which Kafka versions keep their metadata in themselves (KRaft, from 3.3) and which in
ZooKeeper. The shared settings are in `conf/kafka-broker.properties`, beside the package in a wheel, at the top of the
repository in a checkout.
"""

from __future__ import annotations

import shlex
import string
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
PLAINTEXT = "PLAINTEXT"
_CONTROLLER = "CONTROLLER"
_PACKAGE = Path(__file__).parent.parent

# Short-lived tools compile little and collect no garbage; brokers keep the JVM's own choices.
_TOOL_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_BROKER_OPTIONS = ("-Xmx512m",)
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


@dataclass(frozen=True)
class Node:
    """One broker (and KRaft controller): where it listens, what is its own.

    `ports` has one port per listener name, `PLAINTEXT` among them; `controller_port` is KRaft's.
    """

    id: int
    folder: Path
    ports: Mapping[str, int]
    controller_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def meta_properties(self) -> Path:
        """Written when the data folder is first used; it names the cluster."""
        return self.data_folder / "meta.properties"


@dataclass(frozen=True)
class ClusterConfig:
    """What all brokers share.

    `listeners` maps the names of further listeners to their security protocol (`{"TLS": "SSL"}`);
    `format_arguments` are Kafka's StorageTool's (`("--feature", "transaction.version=1")`).
    """

    version: str
    cluster_id: str
    jars: Path
    java: str
    zookeeper_port: int
    class_archive: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    listeners: Mapping[str, str] = field(default_factory=dict)
    format_arguments: Sequence[str] = ()
    jvm_options: Sequence[str] = ()

    @property
    def kraft(self) -> bool:
        return version_numbers(self.version) >= (3, 3)


def version_numbers(version: str) -> tuple[int, ...]:
    """`"4.2.0"` → `(4, 2, 0)`. Raises `ConfigurationError` for anything but numbers and dots."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise ConfigurationError(f'"{version}" is no Kafka version; one looks like "4.2.0"') from error


def conf_file(name: str) -> Path:
    """A file of `conf/`. Raises `ConfigurationError` if the installation lacks it."""
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigurationError(f"conf/{name} is missing from this installation of spark-kafka-source: install it again")


def broker_properties(config: ClusterConfig, node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """The properties of one broker: the shared file, then addresses and ids, then the caller's settings."""
    text = conf_file("kafka-broker.properties").read_text()
    counts = {"brokers": str(len(nodes)), "in_sync": "2" if len(nodes) >= 3 else "1"}
    properties = parse_properties(string.Template(text).substitute(counts))
    protocols = {PLAINTEXT: PLAINTEXT, **config.listeners}
    addresses = {name: f"{name}://{LOOPBACK}:{node.ports[name]}" for name in protocols}
    properties["advertised.listeners"] = ",".join(addresses.values())
    properties["inter.broker.listener.name"] = PLAINTEXT
    properties["log.dirs"] = str(node.data_folder)
    if config.kraft:
        protocols[_CONTROLLER] = PLAINTEXT
        addresses[_CONTROLLER] = f"{_CONTROLLER}://{LOOPBACK}:{node.controller_port}"
        properties["process.roles"] = "broker,controller"
        properties["node.id"] = str(node.id)
        properties["controller.listener.names"] = _CONTROLLER
        properties["controller.quorum.voters"] = ",".join(f"{n.id}@{LOOPBACK}:{n.controller_port}" for n in nodes)
    else:
        properties["broker.id"] = str(node.id)
        properties["zookeeper.connect"] = f"{LOOPBACK}:{config.zookeeper_port}"
        properties["zookeeper.session.timeout.ms"] = "6000"
    properties["listeners"] = ",".join(addresses.values())
    properties["listener.security.protocol.map"] = ",".join(f"{name}:{kind}" for name, kind in protocols.items())
    return {**properties, **config.settings, **node.settings}


def zookeeper_properties(config: ClusterConfig, folder: Path) -> dict[str, str]:
    return {
        "dataDir": str(folder / "data"),
        "clientPort": str(config.zookeeper_port),
        "clientPortAddress": LOOPBACK,
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
        "tickTime": "1000",
    }


def broker_command(config: ClusterConfig, node: Node) -> list[str]:
    """Starts the broker whose properties are in its folder; formats its data folder first if it is new."""
    properties = str(node.folder / "server.properties")
    options = [*_BROKER_OPTIONS, *_archive_options(config), *_logging_options(), *config.jvm_options]
    server = [config.java, *options, "-cp", f"{config.jars}/*", "kafka.Kafka", properties]
    if not config.kraft or node.meta_properties.exists():
        return server
    format_arguments = ["--cluster-id", config.cluster_id, "--config", properties, *config.format_arguments]
    format_data = tool_command(config, "kafka.tools.StorageTool", "format", *format_arguments)
    # One process id from the start: the shell formats, then becomes the broker.
    return ["/bin/sh", "-c", f"{shlex.join(format_data)} && exec {shlex.join(server)}"]


def zookeeper_command(config: ClusterConfig, folder: Path) -> list[str]:
    options = [*_BROKER_OPTIONS, *_archive_options(config), *_logging_options()]
    server = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [config.java, *options, "-cp", f"{config.jars}/*", server, str(folder / "zookeeper.properties")]


def tool_command(config: ClusterConfig, class_name: str, *arguments: str) -> list[str]:
    """Runs one of Kafka's own command line tools."""
    options = [*_TOOL_OPTIONS, *_archive_options(config), _QUIET]
    return [config.java, *options, "-cp", f"{config.jars}/*", class_name, *arguments]


def tool_class(config: ClusterConfig, *names: str) -> str:
    """The first of `names` that this version has: Kafka moved its tools from one package to another over time."""
    files = [f"{name}-{config.version}.jar" for name in ("kafka-tools", "kafka_2.13")]
    for name in names:
        for file in files:
            with zipfile.ZipFile(config.jars / file) as jar:
                if f"{name.replace('.', '/')}.class" in jar.namelist():
                    return name
    raise ConfigurationError(f"Kafka {config.version} has none of the tools {', '.join(names)}")


def parse_properties(text: str) -> dict[str, str]:
    """The lines `key=value` of a properties file; comments and blank lines are skipped."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    # Java reads a backslash as an escape.
    text = "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
    path.write_text(text)
    path.chmod(0o600)  # settings may hold passwords


def _archive_options(config: ClusterConfig) -> list[str]:
    """An archive that does not fit is passed over in silence: it makes a start quicker, never wrong."""
    return (
        [f"-XX:SharedArchiveFile={config.class_archive}", "-Xshare:auto", "-Xlog:cds=off"]
        if config.class_archive
        else []
    )


def _logging_options() -> list[str]:
    return [
        f"-D{key}={value}" for key, value in parse_properties(conf_file("kafka-logging.properties").read_text()).items()
    ]
