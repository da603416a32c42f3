"""The command `pykafka` and its subcommands."""

from __future__ import annotations

import click

from spark_kafka_source.cli.acls import acls
from spark_kafka_source.cli.checkpoint import checkpoint
from spark_kafka_source.cli.cluster import cluster_group
from spark_kafka_source.cli.completion import completion
from spark_kafka_source.cli.configs import configs
from spark_kafka_source.cli.consume import consume
from spark_kafka_source.cli.copying import copy, replay
from spark_kafka_source.cli.doctor import doctor
from spark_kafka_source.cli.groups import groups
from spark_kafka_source.cli.perf import perf
from spark_kafka_source.cli.produce import produce
from spark_kafka_source.cli.profile import profile
from spark_kafka_source.cli.quotas import quotas
from spark_kafka_source.cli.topics import topics
from spark_kafka_source.cli.txn import txn
from spark_kafka_source.cli.users import users


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="spark-kafka-source")
def pykafka() -> None:
    """Administer Kafka from a shell.

    Set the brokers' addresses by --bootstrap-server, by KAFKA_BOOTSTRAP_SERVERS, by a profile (--profile, `pykafka
    profile use`), or in a properties file as for Kafka's own tools (--command-config).
    """


_COMMANDS = (
    *(acls, checkpoint, cluster_group, configs, consume, copy, doctor, groups, produce, quotas, replay, topics, txn),
    *(users, profile, completion, perf),
)
for _command in _COMMANDS:
    pykafka.add_command(_command)
