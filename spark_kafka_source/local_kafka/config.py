"""Properties and command lines of local brokers. Pure: starts and opens nothing.

Called by `cluster`. Versions from 3.3 on use KRaft, earlier ones ZooKeeper. The shared settings are in
`conf/kafka-broker.properties`: in the package of a wheel, at the top of a checkout.
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

# Tools are short-lived: little compilation, a simple garbage collector. Brokers use the JVM's defaults.
_TOOL_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_BROKER_OPTIONS = ("-Xmx512m",)
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


@dataclass(frozen=True)
class Node:
    """One broker (and KRaft controller) with its ports and settings.

    `ports` has one port per listener name, including `PLAINTEXT`; `controller_port` is for KRaft.
    """

    id: int
    folder: Path
    ports: Mapping[str, int]
    controller_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_folder(self) -> Path:
        """The folder of the broker's partitions."""
        return self.folder / "data"

    @property
    def meta_properties(self) -> Path:
        """The file with the cluster id; it exists once the data folder is formatted."""
        first, *_ = self.settings.get("log.dirs", str(self.data_folder)).split(",")
        return Path(first) / "meta.properties"


@dataclass(frozen=True)
class ClusterConfig:
    """The configuration shared by all brokers.

    `listeners` maps the names of additional listeners to their security protocols (`{"TLS": "SSL"}`);
    `format_arguments` are for Kafka's StorageTool (`("--feature", "transaction.version=1")`).
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
        """True for KRaft, False for ZooKeeper."""
        return version_numbers(self.version) >= (3, 3)


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse `"4.4.0"` into `(4, 4, 0)`. Raises `ConfigurationError` for anything but numbers and dots."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise ConfigurationError(f'"{version}" is not a Kafka version such as "4.4.0"') from error


def conf_file(name: str) -> Path:
    """Return a file of `conf/`. Raises `ConfigurationError` if the installation lacks it."""
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigurationError(f"conf/{name} is missing from this installation of spark-kafka-source: install it again")


def broker_properties(config: ClusterConfig, node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """Return the properties of one broker: the shared file, addresses and ids, then the caller's settings."""
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
        # The default, the session timeout, is too short for ZooKeeper to start on a busy machine.
        properties["zookeeper.connection.timeout.ms"] = "60000"
    properties["listeners"] = ",".join(addresses.values())
    properties["listener.security.protocol.map"] = ",".join(f"{name}:{kind}" for name, kind in protocols.items())
    return {**properties, **config.settings, **node.settings}


def zookeeper_properties(config: ClusterConfig, folder: Path) -> dict[str, str]:
    """Return the properties of ZooKeeper with its data in `folder`."""
    return {
        "dataDir": str(folder / "data"),
        "clientPort": str(config.zookeeper_port),
        "clientPortAddress": LOOPBACK,
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
        "tickTime": "1000",
    }


def broker_command(config: ClusterConfig, node: Node) -> list[str]:
    """Return the command of a broker whose properties are in its folder; it also formats a new data folder."""
    properties = str(node.folder / "server.properties")
    options = [*_BROKER_OPTIONS, *_archive_options(config), *_logging_options(), *config.jvm_options]
    server = [config.java, *options, "-cp", f"{config.jars}/*", "kafka.Kafka", properties]
    if not config.kraft or node.meta_properties.exists():
        return server
    format_arguments = ["--cluster-id", config.cluster_id, "--config", properties, *config.format_arguments]
    format_data = tool_command(config, "kafka.tools.StorageTool", "format", *format_arguments)
    # The process id stays the same: the shell formats the folder, then executes the broker.
    return ["/bin/sh", "-c", f"{shlex.join(format_data)} && exec {shlex.join(server)}"]


def zookeeper_command(config: ClusterConfig, folder: Path) -> list[str]:
    """Return the command of ZooKeeper, whose properties are in `folder`."""
    options = [*_BROKER_OPTIONS, *_archive_options(config), *_logging_options()]
    server = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [config.java, *options, "-cp", f"{config.jars}/*", server, str(folder / "zookeeper.properties")]


def tool_command(config: ClusterConfig, class_name: str, *arguments: str) -> list[str]:
    """Return the command of one of Kafka's own tools."""
    options = [*_TOOL_OPTIONS, *_archive_options(config), _QUIET]
    return [config.java, *options, "-cp", f"{config.jars}/*", class_name, *arguments]


def tool_class(config: ClusterConfig, *names: str) -> str:
    """Return the first of `names` that this version has: Kafka has moved its tools between packages."""
    files = [f"{name}-{config.version}.jar" for name in ("kafka-tools", "kafka_2.13")]
    for name in names:
        for file in files:
            with zipfile.ZipFile(config.jars / file) as jar:
                if f"{name.replace('.', '/')}.class" in jar.namelist():
                    return name
    raise ConfigurationError(f"Kafka {config.version} has none of the tools {', '.join(names)}")


def parse_properties(text: str) -> dict[str, str]:
    """Parse the lines `key=value` of a properties file, without comments and blank lines."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a properties file that only its owner can read."""
    # Java reads a backslash as an escape.
    text = "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
    path.write_text(text)
    path.chmod(0o600)  # settings may hold passwords


def _archive_options(config: ClusterConfig) -> list[str]:
    """Return the JVM options for the class archive; the JVM ignores an archive of another Java."""
    return (
        [f"-XX:SharedArchiveFile={config.class_archive}", "-Xshare:auto", "-Xlog:cds=off"]
        if config.class_archive
        else []
    )


def _logging_options() -> list[str]:
    return [
        f"-D{key}={value}" for key, value in parse_properties(conf_file("kafka-logging.properties").read_text()).items()
    ]
