"""`python -m spark_kafka_source.local_kafka`: run a local Kafka until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from protocol.admin.acls import AclBinding, AclOperation, ResourceType
from protocol.admin.admin import Admin
from protocol.errors import KafkaError
from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION, LocalKafka
from spark_kafka_source.local_kafka.jars import to_stderr
from spark_kafka_source.local_kafka.secured import PROTOCOLS, USERS
from spark_kafka_source.local_kafka.users import acl_settings

_EPILOG = """\
A background job of a script ignores Ctrl-C (SIGINT): end it by SIGTERM, `kill PID`.

examples:
  python -m spark_kafka_source.local_kafka --port 9092 --topic orders:3
  python -m spark_kafka_source.local_kafka --topic orders --security sasl_plaintext \\
    --user alice:alice-secret --acl User:alice:read:topic:orders --acl User:alice:read:group:orders-etl
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a cluster, print its bootstrap servers to standard output, and wait for Ctrl-C."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if (chosen.user or chosen.acl) and not any(name.lower().startswith("sasl_") for name in chosen.security):
        parser.error("--user and --acl need a SASL listener: add --security sasl_plaintext or --security sasl_ssl")
    settings = (acl_settings() if chosen.acl else {}) | dict(chosen.set)
    # As with Ctrl-C, the `with` block below ends and cleans up. `nohup` ignores SIGHUP.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        with LocalKafka(
            *(chosen.brokers, chosen.version, settings),
            port=chosen.port,
            security=chosen.security,
            users=dict(chosen.user) if chosen.user else USERS,
            registry=chosen.registry,
            registry_port=chosen.registry_port,
        ) as kafka:
            for name, partitions in chosen.topic:
                kafka.create_topic(name, partitions)
            if chosen.acl:
                with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
                    admin.create_acls(chosen.acl)
            print(kafka.bootstrap_servers, flush=True)
            if chosen.registry or chosen.registry_port is not None:
                print(f"schema.registry.url={kafka.schema_registry_url}", flush=True)
            for protocol in chosen.security:
                for name, value in kafka.client_properties(protocol.upper()).items():
                    print(f"{name}={value}", flush=True)
            to_stderr("Ctrl-C stops it and deletes its data")
            _watch(kafka)
    except KeyboardInterrupt:
        to_stderr("stopped")
    except KafkaError as error:
        to_stderr(f"error: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_kafka_source.local_kafka",
        description=main.__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument(
        "--port",
        type=int,
        help="port of the first broker; further brokers have the following ports (default: free ports)",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=_topic,
        metavar="NAME[:PARTITIONS]",
        help="create a topic, by default with one partition; repeatable",
    )
    parser.add_argument(
        "--version", default=DEFAULT_VERSION, help=f"version of Apache Kafka (default: {DEFAULT_VERSION})"
    )
    parser.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="KEY=VALUE", help="broker setting; repeatable"
    )
    parser.add_argument(
        "--security",
        action="append",
        default=[],
        metavar="PROTOCOL",
        help=f"additional listener: {', '.join(PROTOCOLS).lower()}; repeatable",
    )
    parser.add_argument(
        "--user",
        action="append",
        type=_user,
        metavar="NAME:PASSWORD",
        help="user of the SASL listeners, whose properties are those of the first user; repeatable (default: alice)",
    )
    parser.add_argument(
        "--acl",
        action="append",
        default=[],
        type=_acl,
        metavar="User:NAME:OPERATION:RESOURCE_TYPE:RESOURCE_NAME",
        help="allow a user an operation, as `pykafka acls`, and deny what no ACL allows; clients of the plain listener "
        "have all permissions; repeatable",
    )
    parser.add_argument("--registry", action="store_true", help="start a schema registry, and print its address")
    parser.add_argument(
        "--registry-port", type=int, metavar="PORT", help="start it on this port (default: a free port)"
    )
    return parser


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not name or (colon and not (partitions.isdecimal() and int(partitions) > 0)):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a topic, or a topic and its number of partitions, such as orders:3"
        )
    return name, int(partitions) if colon else 1


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: a setting and its value, such as log.retention.ms=60000")
    return name, value


def _user(text: str) -> tuple[str, str]:
    name, _, password = text.partition(":")
    # The text of the argument may be a password.
    if not name or not password or "," in text:
        raise argparse.ArgumentTypeError("a user and a password without commas, such as alice:alice-secret")
    return name, password


def _acl(text: str) -> AclBinding:
    try:
        kind, user, operation, resource_type, resource_name = text.split(":", 4)
        principal = f"{kind}:{user}"
        operation, resource_type = (word.upper().replace("-", "_") for word in (operation, resource_type))
        return AclBinding(ResourceType[resource_type], resource_name, principal, AclOperation[operation])
    except (ValueError, KeyError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: principal, operation, resource type and name, such as User:alice:read:topic:orders"
        ) from error


def _watch(kafka: LocalKafka) -> None:
    """Report brokers that end unexpectedly; never return."""
    up = set(kafka.broker_ids)
    while True:
        time.sleep(1)
        for broker_id in sorted(up):
            if kafka.pid(broker_id) is None:
                up.remove(broker_id)
                to_stderr(f"broker {broker_id} has ended; its log: {kafka.log(broker_id)}")


if __name__ == "__main__":
    sys.exit(main())
