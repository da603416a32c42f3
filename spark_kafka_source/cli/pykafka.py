"""The command itself: what it is about, by subject."""

from __future__ import annotations

import click

from spark_kafka_source.cli.groups import groups
from spark_kafka_source.cli.topics import topics
from spark_kafka_source.cli.txn import txn


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="spark-kafka-source")
def pykafka() -> None:
    """Look at Kafka, and set it right, from a shell.

    Where the brokers are stands in --bootstrap-server, in KAFKA_BOOTSTRAP_SERVERS, or in a file of properties as
    Kafka's own tools take it (--command-config).
    """


pykafka.add_command(groups)
pykafka.add_command(topics)
pykafka.add_command(txn)
