"""`pykafka fake`: an in-memory cluster on a port, until it is interrupted."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from spark_kafka_source.cli.connection import pairs
from spark_kafka_source.cli.stop_signals import stop_request
from spark_kafka_source.cli.values import Parsed


def _topic(text: str) -> tuple[str, int]:
    """Parse a topic and its number of partitions: `NAME` or `NAME:PARTITIONS`."""
    name, colon, count = text.partition(":")
    if not name or (colon and not (count.isdecimal() and int(count) > 0)):
        raise ValueError("a topic, or a topic and its number of partitions, such as orders:3")
    return name, int(count) if colon else 1


def _host(text: str) -> str:
    """Refuse names that sockets cannot encode, which some raise as `TypeError` and others as `ValueError`."""
    try:
        text.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"not the name or address of a host: {error.__cause__ or error}") from error
    return text


@click.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    type=Parsed("topic", _topic),
    metavar="NAME[:PARTITIONS]",
    help="Create a topic; repeatable.",
)
@click.option("--brokers", type=click.IntRange(1), default=1, show_default=True, help="Number of brokers.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port of the first broker; the next brokers have the next ports. 0: free ports.",
)
@click.option(
    "--host",
    type=Parsed("host", _host),
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on and to advertise.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", callback=pairs, help="A broker setting; repeatable."
)
def fake(topics: tuple[tuple[str, int], ...], brokers: int, port: int, host: str, settings: Mapping[str, str]) -> None:
    """Run an in-memory Kafka cluster for tests until Ctrl-C; its records are gone afterwards.

    Prints the addresses of the brokers when they accept connections. Topics that clients ask for are created, unless
    --set auto.create.topics.enable=false.

    \b
    Examples:
      pykafka fake --port 19092 --topic orders:3
      pykafka fake --port 19092 --brokers 3 --set default.replication.factor=3
    """
    from protocol.testing import FakeKafka, Refused

    by_itself = {"auto.create.topics.enable": "true", "log.retention.check.interval.ms": "300000"}
    try:
        kafka = FakeKafka(brokers, settings={**by_itself, **settings}, host=host, port=port, record_requests=False)
    except (OSError, OverflowError) as error:
        # A taken port has a number of the operating system, which an unknown host has not.
        text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else error
        ports = f"{port}" if brokers == 1 or not port else f"{port}-{port + brokers - 1}"
        raise click.ClickException(f"{host}:{ports}: {text}. Choose another --port or --host.") from error
    except ValueError as error:
        raise click.UsageError(f"--set: {error}.") from error
    with kafka, stop_request() as stop:
        for name, partitions in topics:
            try:
                kafka.create_topic(name, partitions)
            except Refused as refusal:
                raise click.ClickException(f"topic {name}: {refusal}") from refusal
        click.echo(kafka.bootstrap_servers)
        stop.wait()
