"""The checks of `pykafka doctor`: this Python, the network, TLS, SASL, APIs, ACLs, clocks, one record."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import protocol
from protocol.admin.acls import AclOperation
from protocol.admin.admin import Admin
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import CONTROL
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import KafkaError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.net.connect import connect
from protocol.net.resolver import resolve
from protocol.net.tls_context import TLSContext
from protocol.producer.producer import Producer
from protocol.wire import registry
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from spark_kafka_source.cli.connection import Cluster
from spark_kafka_source.cli.positions import list_ends

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
PROJECT_FOLDER = Path(protocol.__file__).parent.parent
_FEWEST_DAYS = 30
_CLOCK_WARNING_MS = 1_000
_CLOCK_FAILURE_MS = 60_000
_STEP_MS = 10_000
_WORKER_TIMEOUT_S = 60
# For reading and writing with this project's source and sink.
_OF_READERS = (AclOperation.READ, AclOperation.DESCRIBE)
_PROGRAM = """
import json, sys
found = {"python": sys.version.split()[0], "executable": sys.executable}
for name in ("protocol", "spark_kafka_source", "pyarrow"):
    try:
        found[name] = str(__import__(name).__file__)
    except Exception as error:
        found[name + "_error"] = repr(error)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    `check`, `subject`: the step, and the host, broker, topic, group or package.
    `status`: one of `ok`, `warning`, `failed` and `skipped`.
    `detail`: the facts found.
    `remedy`: the action to take; None if there is nothing to do.
    """

    check: str
    subject: str
    status: str
    detail: str
    remedy: str | None = None


Findings = Iterator[Finding]


def check_python() -> Findings:
    """Check this Python and its packages, and the Python of Spark's workers."""
    packages = f"pyarrow {pa.__version__}, {platform.python_implementation()} at {sys.executable}"
    yield Finding("python", platform.python_version(), OK, packages)
    yield _import_path()
    providers = set(importlib.metadata.packages_distributions().get("protocol", ())) - {"spark-kafka-source"}
    for name in sorted(providers):
        yield Finding(
            *("python", "protocol", FAILED, f"the package {name} installs a module of this name, too"),
            f"pip uninstall {name}, then install spark-kafka-source again",
        )
    if importlib.util.find_spec("pykafka") is not None:
        yield Finding(
            *("python", "pykafka", WARNING, "a package pykafka is installed: another, discontinued client"),
            "pip uninstall pykafka, unless your program imports it",
        )
    yield from _check_worker()


def _import_path() -> Finding:
    ours = Path(__file__).parent.parent.parent
    if ours == PROJECT_FOLDER:
        return Finding("python", "import", OK, f"protocol is {protocol.__file__}")
    return Finding(
        *("python", "import", FAILED, f"protocol is {protocol.__file__}, not the one in {ours}"),
        "remove the other package, or its folder from PYTHONPATH",
    )


def _check_worker() -> Findings:
    """Import the packages in the Python that Spark's workers run on this machine."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    program = chosen or "python3"  # as PySpark
    # Without Spark, the `python3` of PATH does not matter.
    bad, subject = (FAILED, program) if chosen else (WARNING, "python3 of PATH")
    remedy = f"set PYSPARK_PYTHON to {sys.executable}"
    executable = shutil.which(program)
    if executable is None:
        yield Finding("spark worker", subject, bad, "there is no such program", remedy)
        return
    stderr = b""
    try:
        # Outside this folder, which Python would put on the path.
        ended = subprocess.run(
            [executable, "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WORKER_TIMEOUT_S,
            cwd=os.sep,
        )
        stderr = ended.stderr
        answer = json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        detail = str(error) if isinstance(error, OSError) else stderr.decode(errors="replace").strip()[-200:]
        yield Finding("spark worker", subject, bad, detail or "no answer", remedy)
        return
    python, running = answer["python"], platform.python_version()
    errors = [text for name, text in answer.items() if name.endswith("_error")]
    if errors and "another package" in errors[0]:
        remedy = "remove that package from the worker's Python"
    elif errors:
        remedy += f", or install the wheel of this package: {executable} -m pip install WHEEL"
    if errors:
        yield Finding("spark worker", subject, bad, f"Python {python}: {errors[0]}", remedy)
    elif Path(answer["protocol"]).parent.parent != Path(answer["spark_kafka_source"]).parent.parent:
        detail = f"protocol is {answer['protocol']}, another package"
        yield Finding("spark worker", subject, bad, detail, "remove that package from the worker's Python")
    elif python.split(".")[:2] != running.split(".")[:2]:
        detail = f"Python {python}, but the driver has {running}; Spark needs the same minor version on both sides"
        yield Finding("spark worker", subject, bad, detail, remedy)
    else:
        yield Finding("spark worker", subject, OK, f"Python {python}, protocol is {answer['protocol']}")


# -- network --------------------------------------------------------------------------------------


def check_network(cluster: Cluster) -> Findings:
    """Check DNS, TCP and TLS of the bootstrap servers."""
    for host, port in cluster.client.config.bootstrap_servers:
        yield from _check_address(cluster, host, port)


def _check_address(cluster: Cluster, host: str, port: int) -> Findings:
    where, client = f"{host}:{port}", cluster.client
    deadline = client.deadline(_step_ms(cluster))
    try:
        addresses = sorted({str(address[4][0]) for address in resolve(host, port, deadline)})
    except KafkaError as error:
        yield Finding(
            "dns", where, FAILED, _without(where, error), "check the name in bootstrap.servers, and the resolver"
        )
        return
    yield Finding("dns", where, OK, listed(addresses))
    began_s = time.monotonic()
    try:
        sock = connect(host, port, deadline)
    except KafkaError as error:
        remedy = "check the port, that the broker runs, and firewalls between"
        yield Finding("tcp", where, FAILED, _without(where, error), remedy)
        return
    with sock:
        yield Finding("tcp", where, OK, f"connected in {(time.monotonic() - began_s) * 1000:.0f} ms")
    if client.config.security_protocol.endswith("SSL"):
        yield _check_certificate(cluster, host, port)


def _check_certificate(cluster: Cluster, host: str, port: int) -> Finding:
    where, client = f"{host}:{port}", cluster.client
    try:
        context = TLSContext(client.config.tls).current()
        sock = connect(host, port, client.deadline(_step_ms(cluster)))
        sock.settimeout(_step_ms(cluster) / 1000)
        with context.wrap_socket(sock, server_hostname=host.rstrip(".")) as secured:
            certificate, version = secured.getpeercert() or {}, secured.version()
    except (OSError, KafkaError) as error:
        if isinstance(error, KafkaError) or not _asks_for_certificate(error):
            # The error of the client says what to do; it comes with the check of the connection.
            return Finding("tls", where, FAILED, _without(where, error), "see the check of the connection below")
        return Finding("tls", where, WARNING, str(error), "the broker wants a certificate: ssl.keystore.location")
    names = [str(pair[1]) for pair in certificate.get("subjectAltName", ())]
    ends = certificate.get("notAfter")
    left_days = (ssl.cert_time_to_seconds(str(ends)) - time.time()) / 86_400 if ends else float("inf")
    detail = f"{version}; names: {listed(names) or 'none'}; valid until {ends} ({left_days:.0f} days)"
    if left_days < _FEWEST_DAYS:
        return Finding("tls", where, WARNING, detail, "renew the broker's certificate")
    return Finding("tls", where, OK, detail)


def _step_ms(cluster: Cluster) -> float:
    """Return the time limit of one step; --timeout shortens it."""
    return _STEP_MS if cluster.timeout_ms is None else min(_STEP_MS, cluster.timeout_ms)


def _without(where: str, error: Exception) -> str:
    return str(error).removeprefix(f"{where}: ")


def _asks_for_certificate(error: OSError) -> bool:
    return "CERTIFICATE_REQUIRED" in str(getattr(error, "reason", ""))


def check_connections(cluster: Cluster) -> Findings:
    """Check that a bootstrap server accepts the client (TLS, SASL), then every broker at its advertised address."""
    client, config = cluster.client, cluster.client.config
    security: str = config.security_protocol
    if security.startswith("SASL"):
        security += f", {config.sasl.mechanism}"
    servers = listed([f"{host}:{port}" for host, port in config.bootstrap_servers], separator=",")
    try:
        metadata = client.metadata([], client.deadline(_step_ms(cluster)))
    except KafkaError as error:
        yield Finding("connection", servers, FAILED, str(error), _remedy(error))
        return
    yield Finding("connection", servers, OK, f"{security}; cluster {metadata.cluster_id}")
    for broker in sorted(metadata.brokers.values(), key=lambda broker: broker.node_id):
        yield from _check_broker(cluster, broker)


def _check_broker(cluster: Cluster, broker: Broker) -> Findings:
    where, client = f"broker {broker.node_id}", cluster.client
    try:
        connection = client.connection(broker, CONTROL, client.deadline(_step_ms(cluster)))
    except KafkaError as error:
        remedy = f"{broker.host}:{broker.port} is the broker's advertised.listeners: this machine must reach it"
        yield Finding("connection", where, FAILED, str(error), remedy)
        return
    yield Finding("connection", where, OK, f"{broker.host}:{broker.port}, rack {broker.rack or 'unknown'}")
    versions = connection.versions
    missing = [
        api.name
        for api in registry.API_BY_KEY.values()
        if api.key not in versions or versions[api.key][0] > api.last or versions[api.key][1] < api.first
    ]
    detail = (
        f"{len(versions)} APIs; not supported: {', '.join(sorted(missing))}" if missing else f"{len(versions)} APIs"
    )
    # An operation that needs a missing API raises an error that names it.
    yield Finding("api versions", where, OK, detail)


# -- permissions ----------------------------------------------------------------------------------


def check_topic(cluster: Cluster, topic: str) -> Findings:
    """Check that a topic exists, and which operations the client may use on it."""
    client, deadline = cluster.client, cluster.client.deadline(_step_ms(cluster))
    body = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }
    try:
        (row,) = client.ask_any(METADATA, body, deadline, at_least=8)["topics"]
        if row["error_code"] != ErrorCode.NONE:
            raise broker_error(row["error_code"], f"Metadata of {topic}", api="Metadata", topic=topic)
    except KafkaError as error:
        yield Finding("topic", topic, FAILED, str(error), _remedy(error))
        return
    leaderless = [
        str(partition["partition_index"])
        for partition in row["partitions"]
        if partition["error_code"] != ErrorCode.NONE
    ]
    count = f"{len(row['partitions'])} partitions"
    if leaderless:
        yield Finding("topic", topic, FAILED, f"{count}; without a leader: {listed(leaderless)}", "start their brokers")
    else:
        yield Finding("topic", topic, OK, count)
    allowed = _operations(row["topic_authorized_operations"])
    yield _permissions("topic ACLs", topic, allowed, {"read": _OF_READERS, "write": (AclOperation.WRITE,)})


def check_group(cluster: Cluster, group: str) -> Findings:
    """Check that a group has a coordinator, and which operations the client may use on it."""
    client, deadline = cluster.client, cluster.client.deadline(_step_ms(cluster))
    body = {"groups": [group], "include_authorized_operations": True}

    def ask() -> tuple[Broker, Mapping[str, Any]]:
        coordinator = client.coordinator(group_coordinator(group), deadline)
        # From version 6 on, unknown groups have no operations in the reply.
        (row,) = client.ask(coordinator, DESCRIBE_GROUPS, body, deadline, at_least=3, at_most=5)["groups"]
        if row["error_code"] != ErrorCode.NONE:
            raise broker_error(row["error_code"], f"DescribeGroups of {group}", api="DescribeGroups", group=group)
        return coordinator, row

    try:
        coordinator, row = client.retrying(
            f"DescribeGroups of {group}", ask, deadline, coordinator_of=group_coordinator(group)
        )
    except KafkaError as error:
        yield Finding("group", group, FAILED, str(error), _remedy(error))
        return
    yield Finding("group", group, OK, f"coordinator {coordinator}")
    allowed = _operations(row["authorized_operations"])
    yield _permissions("group ACLs", group, allowed, {"commit": (AclOperation.READ,)})


def _operations(bits: int) -> set[AclOperation]:
    return {operation for operation in AclOperation if bits >= 0 and bits >> operation & 1}


def _permissions(
    check: str, subject: str, allowed: set[AclOperation], needed: Mapping[str, Iterable[AclOperation]]
) -> Finding:
    names = ", ".join(sorted(operation.name.lower() for operation in allowed)) or "none"
    missing = [
        f"to {use}: {', '.join(operation.name.lower() for operation in operations if operation not in allowed)}"
        for use, operations in needed.items()
        if not set(operations) <= allowed
    ]
    if not missing:
        return Finding(check, subject, OK, f"allowed: {names}")
    # A reader needs no right to write, and the other way round.
    status = FAILED if len(missing) == len(needed) else WARNING
    remedy = f"pykafka acls create; missing {'; '.join(missing)}"
    return Finding(check, subject, status, f"allowed: {names}", remedy)


# -- clock, records -------------------------------------------------------------------------------


def now_ms() -> float:
    """Return the time of this machine."""
    return time.time() * 1000


def check_clock(cluster: Cluster) -> Findings:
    """Compare this clock with that of the active controller, which the quorum's description contains."""
    before_ms = now_ms()
    try:
        quorum = Admin(cluster.client).describe_metadata_quorum(timeout_ms=_step_ms(cluster))
    except KafkaError as error:
        yield Finding("clock", "controller", SKIPPED, str(error), _remedy(error))
        return
    after_ms = now_ms()
    # A leader that leaves the voters (KIP-853) is not among them.
    leader_ms = next((voter.last_fetch_ms for voter in quorum.voters if voter.replica_id == quorum.leader_id), None)
    if leader_ms is None:
        yield Finding("clock", "controller", SKIPPED, "the brokers do not tell their time")
        return
    # A difference below the round-trip time cannot be measured.
    ahead_ms = before_ms - leader_ms if before_ms > leader_ms else min(0.0, after_ms - leader_ms)
    detail = f"this machine is {abs(ahead_ms):.0f} ms {'ahead' if ahead_ms > 0 else 'behind'}"
    status = FAILED if abs(ahead_ms) > _CLOCK_FAILURE_MS else WARNING if abs(ahead_ms) > _CLOCK_WARNING_MS else OK
    remedy = None if status == OK else "synchronise the clocks (NTP): times of records and of positions depend on it"
    yield Finding("clock", "controller", status, detail if ahead_ms else "no difference", remedy)


def check_read(cluster: Cluster, topic: str) -> Findings:
    """Read the last record of a topic."""
    client, deadline = cluster.client, cluster.client.deadline(_step_ms(cluster))
    try:
        keys = [(topic, number) for number in client.topic(topic, deadline).partitions]
        logs = list_ends(client, cluster.consumer, keys, deadline)
        filled = [key for key in keys if logs.starts[key] < logs.ends[key].offset]
        if not filled:
            yield Finding("read", topic, OK, "the topic has no records to read")
            return
        key, end = filled[0], logs.ends[filled[0]].offset
        count = _count(cluster, Range(*key, end - 1, end))
    except KafkaError as error:
        yield Finding("read", topic, FAILED, str(error), _remedy(error))
        return
    # A transaction's marker is no record.
    yield Finding("read", topic, OK, f"offset {end - 1} of partition {key[1]}: {count} record")


def check_write(cluster: Cluster, topic: str) -> Findings:
    """Write a record, and read it back."""
    value = f"pykafka doctor {uuid.uuid4()}".encode()
    try:
        began_s = time.monotonic()
        with Producer(cluster.client, cluster.of_producer) as producer:
            written = producer.send_and_wait(topic, value, key=b"pykafka doctor", timeout_ms=_step_ms(cluster))
        wrote_ms = (time.monotonic() - began_s) * 1000
        if written.offset < 0:
            yield Finding("write", topic, OK, "sent; with acks=0, brokers do not acknowledge it")
            return
        place = Range(topic, written.partition, written.offset, written.offset + 1)
        count = _count(cluster, place)
    except KafkaError as error:
        yield Finding("write", topic, FAILED, str(error), _remedy(error))
        return
    detail = f"partition {written.partition}, offset {written.offset}, acknowledged in {wrote_ms:.0f} ms"
    if count != 1:
        yield Finding("write", topic, FAILED, f"{detail}, but not read back", "read it with pykafka consume")
    else:
        yield Finding("write", topic, OK, f"{detail}, read back")


def _count(cluster: Cluster, place: Range) -> int:
    reader = BoundedReader(
        cluster.client, cluster.consumer, [place], columns=["offset"], poll_timeout_ms=_step_ms(cluster)
    )
    return sum(batch.num_rows for _, batch in reader)


_REMEDIES: Mapping[str, str] = {
    "CLUSTER_AUTHORIZATION_FAILED": "pykafka acls create --principal … --operation describe --cluster",
    "TOPIC_AUTHORIZATION_FAILED": "pykafka acls create --principal … --consumer (or --producer) --topic …",
    "GROUP_AUTHORIZATION_FAILED": "pykafka acls create --principal … --consumer --group …",
    "UNKNOWN_TOPIC_OR_PARTITION": "pykafka topics create, or check the name",
}


def _remedy(error: KafkaError) -> str:
    text = str(error)
    for word, remedy in _REMEDIES.items():
        if word in text:
            return remedy
    kinds: Mapping[str, str] = {
        "AuthenticationFailed": "check sasl.mechanism and sasl.jaas.config; pykafka users list shows the SCRAM users",
        "TLSFailed": "check security.protocol and ssl.*; the message names the property",
        "DeadlineExceeded": "check that the listener's protocol is security.protocol, and the broker's log",
    }
    return kinds.get(type(error).__name__, "see the message")
