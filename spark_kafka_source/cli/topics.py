"""`pykafka topics`: create topics."""

from __future__ import annotations

from collections.abc import Mapping

import click

from protocol.admin.topics import NewTopic, create_topic
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs


@click.group()
def topics() -> None:
    """Create topics."""


@topics.command()
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(1, 2**31 - 1), help="[default: num.partitions of the brokers]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 2**15 - 1),
    help="[default: default.replication.factor of the brokers]",
)
@click.option(
    "--config",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="A topic setting; repeatable.",
)
@asks_brokers
def create(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
) -> None:
    """Create a topic and wait until every partition has a leader.

    \b
    Examples:
      pykafka topics create orders --partitions 6 --bootstrap-server broker-1:9092
      pykafka topics create orders --replication-factor 3 --config retention.ms=604800000
    """
    create_topic(cluster.client, NewTopic(name, partitions or -1, replication_factor or -1, configs), cluster.deadline)
    click.echo(f"created {name}")
