"""The command `pykafka` and its subcommands."""

from __future__ import annotations

import click

from spark_kafka_source.cli.consume import consume
from spark_kafka_source.cli.groups import groups
from spark_kafka_source.cli.produce import produce
from spark_kafka_source.cli.topics import topics
from spark_kafka_source.cli.txn import txn


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="spark-kafka-source")
def pykafka() -> None:
    """Administer Kafka from a shell.

    Set the brokers' addresses by --bootstrap-server, by KAFKA_BOOTSTRAP_SERVERS, or in a properties file as for Kafka's
    own tools (--command-config).
    """


pykafka.add_command(consume)
pykafka.add_command(groups)
pykafka.add_command(produce)
pykafka.add_command(topics)
pykafka.add_command(txn)
