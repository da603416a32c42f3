"""The command `pykafka` and its subcommands."""

from __future__ import annotations

import click

from protocol.version import __version__
from spark_kafka_source.cli.lazy_group import LazyGroup

# The summaries are the first sentences of the commands' docstrings.
_COMMANDS = {
    "acls": ("acls:acls", "List, create and delete ACLs."),
    "checkpoint": (
        "checkpoint:checkpoint",
        "Inspect the checkpoint of a Spark query, and compare it with the group and the log.",
    ),
    "cluster": (
        "cluster:cluster_group",
        "Describe brokers, features, the metadata quorum and log directories; set feature levels.",
    ),
    "completion": (
        "completion:completion",
        "Print the script that completes commands, options, topics, groups and profiles in a shell.",
    ),
    "configs": (
        "configs:configs",
        "List, describe, set and delete settings of topics, brokers, broker loggers, groups and client metrics.",
    ),
    "consume": (
        "consume:consume",
        "Print the records of a topic until Ctrl-C, or write them to a Parquet or Arrow file.",
    ),
    "copy": (
        "copying:copy",
        "Copy records with keys, headers and timestamps to another topic, also of another cluster.",
    ),
    "doctor": ("doctor:doctor", "Check Python, network, TLS, SASL, API versions, ACLs, clocks and records."),
    "fake": ("fake:fake", "Run an in-memory Kafka cluster for tests until Ctrl-C; its records are gone afterwards."),
    "groups": (
        "groups:groups",
        "List, describe, reset, clone and delete consumer groups; show their lag, remove their members.",
    ),
    "perf": ("perf:perf", "Measure producing and consuming, with the figures of Kafka's performance tools."),
    "produce": (
        "produce:produce",
        "Write records from standard input or FILE to a topic, and show the offsets written.",
    ),
    "profile": ("profile:profile", "List, show and choose profiles: properties of clusters in a TOML file."),
    "quotas": ("quotas:quotas", "List, set and delete quotas of users, client ids and addresses."),
    "registry": ("registry:registry", "List the subjects of a schema registry, show schemas, check a new version."),
    "replay": ("copying:replay", "Write dead letters back to the topics in their headers."),
    "topics": ("topics:topics", "List, describe, create, change, delete, trim and analyze topics."),
    "txn": ("txn:txn", "List, describe and abort transactions."),
    "users": ("users:users", "List, set and delete the SCRAM credentials of users."),
}


@click.group(
    cls=LazyGroup,
    lazy={name: (f"{__package__}.{place}", summary) for name, (place, summary) in _COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__)
def pykafka() -> None:
    """Administer Kafka from a shell.

    Set the brokers' addresses by --bootstrap-server, by KAFKA_BOOTSTRAP_SERVERS, by a profile (--profile, `pykafka
    profile use`), or in a properties file as for Kafka's own tools (--command-config).
    """
