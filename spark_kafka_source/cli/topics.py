"""`pykafka topics`: list, describe, create, alter, delete, trim and analyze topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import click

from protocol.admin.admin import Admin
from protocol.admin.configs import AlterConfigOp, AlterConfigOpType, ConfigEntry, ConfigSource, topic_resource
from protocol.admin.topics import NewPartitions, NewTopic, TopicDescription
from protocol.broker_errors import ErrorCode
from protocol.errors import AdminFailed, BrokerError, KafkaError
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from spark_kafka_source.cli.completion import complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs, prints_done
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import REPLICA_ASSIGNMENT, TIME, TOPIC_PARTITIONS

_CONFIG: dict[str, Any] = {"metavar": "NAME=VALUE", "multiple": True, "callback": pairs}
_REPLICA_ASSIGNMENT: dict[str, Any] = {"metavar": "BROKER:BROKER,...", "type": REPLICA_ASSIGNMENT}
# Least time to list what a failed command has changed.
_LIST_MS = 2_000
_validate_only = click.option("--validate-only", is_flag=True, help="Let the brokers check it; change nothing.")


@click.group()
def topics() -> None:
    """List, describe, create, change, delete, trim and analyze topics."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="Include Kafka's internal topics.")
@output_option
@asks_brokers
def list_command(cluster: Cluster, internal: bool, output: str) -> None:
    """List topics with their partitions, replicas and under-replicated partitions.

    \b
    Examples:
      pykafka topics list --bootstrap-server broker-1:9092
      pykafka topics list --internal -o json
    """
    rows = [
        (
            topic.name,
            len(topic.partitions),
            max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
            sum(len(partition.isr) < len(partition.replicas) for partition in topic.partitions.values()),
            topic.topic_id_text,
        )
        for _, topic in sorted(cluster.client.metadata(None, cluster.deadline).topics.items())
        if internal or not topic.is_internal
    ]
    print_rows(("topic", "partitions", "replicas", "under_replicated", "topic_id"), rows, output)


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--configs", is_flag=True, help="The settings instead of the partitions: those set on the topic.")
@click.option("--all-configs", is_flag=True, help="All settings, with those of brokers and Kafka's defaults.")
@output_option
@asks_brokers
def describe(cluster: Cluster, names: tuple[str, ...], configs: bool, all_configs: bool, output: str) -> None:
    """Show the partitions of topics with leader, replicas and offsets, or their settings.

    \b
    Examples:
      pykafka topics describe orders payments
      pykafka topics describe orders --all-configs -o yaml
    """
    admin = Admin(cluster.client)
    descriptions = admin.describe_topics(names, configs=configs or all_configs, timeout_ms=cluster.left_ms)
    if configs or all_configs:
        settings = list(_settings(descriptions.values(), everything=all_configs))
        print_rows(("topic", "name", "value", "source"), settings, output)
        return
    partitions = {
        (topic.name, number): partition
        for topic in descriptions.values()
        for number, partition in topic.partitions.items()
    }
    # Without a leader, the ends of a log are unknown.
    led = [key for key, partition in partitions.items() if partition.leader >= 0]
    begins, ends = (_offsets(admin, cluster, led, moment) for moment in (EARLIEST, LATEST))
    rows = [
        (*key, partition.leader, _ids(partition.replicas), _ids(partition.isr), begins.get(key), ends.get(key))
        for key, partition in partitions.items()
    ]
    print_rows(("topic", "partition", "leader", "replicas", "isr", "log_start_offset", "log_end_offset"), rows, output)


def _settings(descriptions: Iterable[TopicDescription], *, everything: bool) -> Iterable[tuple[Any, ...]]:
    for topic in descriptions:
        entries: Mapping[str, ConfigEntry] = topic.configs or {}
        for name, entry in sorted(entries.items()):
            if everything or entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
                yield topic.name, name, entry.value, entry.source.name


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


@topics.command()
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(1, 2**31 - 1), help="[default: num.partitions of the brokers]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 2**15 - 1),
    help="[default: default.replication.factor of the brokers]",
)
@click.option(
    "--replica-assignment",
    help="Brokers of each partition, the preferred leader first, in place of the two numbers.",
    **_REPLICA_ASSIGNMENT,
)
@click.option("--config", "configs", help="A topic setting; repeatable.", **_CONFIG)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@_validate_only
@asks_brokers
def create(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: list[list[int]] | None,
    configs: Mapping[str, str],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create a topic and wait until every partition has a leader.

    \b
    Examples:
      pykafka topics create orders --partitions 6 --bootstrap-server broker-1:9092
      pykafka topics create payments --config cleanup.policy=compact --config segment.ms=3600000
    """
    if replica_assignment is not None and (partitions, replication_factor) != (None, None):
        raise click.UsageError("Give either --replica-assignment, or --partitions and --replication-factor.")
    assignment = None if replica_assignment is None else dict(enumerate(replica_assignment))
    topic = NewTopic(name, partitions or -1, replication_factor or -1, configs, assignment)
    try:
        Admin(cluster.client).create_topics([topic], validate_only=validate_only, timeout_ms=cluster.left_ms)
    except AdminFailed as failed:
        error = failed.errors[name]
        if if_not_exists and isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            click.echo(f"{name} exists")
            return
        raise error from None
    click.echo(f"{'valid:' if validate_only else 'created'} {name}")


@topics.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--partitions", type=click.IntRange(1, 2**31 - 1), help="The new number of partitions; never fewer.")
@click.option(
    "--replica-assignment",
    help="Brokers of all partitions, as in `create`; those that exist keep their brokers.",
    **_REPLICA_ASSIGNMENT,
)
@click.option("--config", "configs", help="Set a topic setting; repeatable.", **_CONFIG)
@click.option(
    "--delete-config", "deleted", metavar="NAME", multiple=True, help="Return a setting to its default; repeatable."
)
@_validate_only
@asks_brokers
def alter(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replica_assignment: list[list[int]] | None,
    configs: Mapping[str, str],
    deleted: tuple[str, ...],
    validate_only: bool,
) -> None:
    """Add partitions to a topic, or change its settings.

    More partitions change the partition of new records with a key.

    \b
    Examples:
      pykafka topics alter orders --partitions 12
      pykafka topics alter orders --config retention.ms=86400000 --delete-config cleanup.policy
    """
    if partitions is None and not configs and not deleted:
        raise click.UsageError("Give --partitions, --config or --delete-config.")
    if replica_assignment is not None and partitions != len(replica_assignment):
        raise click.UsageError("--replica-assignment needs --partitions with the same number of partitions.")
    admin = Admin(cluster.client)
    changes = [AlterConfigOp(setting, value) for setting, value in configs.items()]
    changes += [AlterConfigOp(setting, None, AlterConfigOpType.DELETE) for setting in deleted]
    if partitions is not None:
        added: int | NewPartitions = partitions
        if replica_assignment is not None:
            existing = admin.describe_topics([name], timeout_ms=cluster.left_ms)[name].partitions
            added = NewPartitions(partitions, replica_assignment[len(existing) :])
        admin.create_partitions({name: added}, validate_only=validate_only, timeout_ms=cluster.left_ms)
    if changes:
        admin.incremental_alter_configs(
            {topic_resource(name): changes}, validate_only=validate_only, timeout_ms=cluster.left_ms
        )
    click.echo(f"{'valid:' if validate_only else 'altered'} {name}")


@topics.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def delete(cluster: Cluster, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records, after confirmation.

    \b
    Examples:
      pykafka topics delete orders-test
      pykafka topics delete orders-test payments-test --yes
    """
    if not yes:
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True, err=True)
    with prints_done("deleted", {name: name for name in names}):
        Admin(cluster.client).delete_topics(names, timeout_ms=cluster.left_ms)


@topics.command()
@click.argument("target", metavar="TOPIC[:PARTITIONS]", type=TOPIC_PARTITIONS, shell_complete=complete_topics)
@click.option("--before-offset", type=click.IntRange(0), help="Delete records before this offset.")
@click.option("--before", "before_ms", type=TIME, help="Delete records before the first one at or after this time.")
@click.option("--all", "everything", is_flag=True, help="Delete all records up to the high watermark.")
@click.option("--execute", is_flag=True, help="Delete; without it, only show what would be deleted.")
@output_option
@asks_brokers
def trim(
    cluster: Cluster,
    target: tuple[str, tuple[int, ...] | None],
    before_offset: int | None,
    before_ms: int | None,
    everything: bool,
    execute: bool,
    output: str,
) -> None:
    """Delete the oldest records of partitions. Without --execute, only show the new log start offsets.

    \b
    Examples:
      pykafka topics trim orders --before 2026-01-31T06:00:00Z
      pykafka topics trim orders:0,1 --before-offset 1200 --execute
    """
    if sum((before_offset is not None, before_ms is not None, everything)) != 1:
        raise click.UsageError("Give exactly one of --before-offset, --before and --all.")
    admin, (name, numbers) = Admin(cluster.client), target
    partitions = admin.describe_topics([name], timeout_ms=cluster.left_ms)[name].partitions
    if missing := sorted(set(numbers or ()) - set(partitions)):
        raise click.UsageError(f"{name} has no partition {missing[0]}.")
    keys: list[TopicPartition] = [(name, number) for number in (numbers or sorted(partitions))]
    begins = _offsets(admin, cluster, keys, EARLIEST)
    ends = _ends_to_trim(admin, cluster, keys, before_offset, before_ms)
    targets = {key: max(ends[key], begins[key]) for key in keys}
    if execute:
        due = {key: offset for key, offset in targets.items() if offset > begins[key]}
        try:
            admin.delete_records(due, timeout_ms=cluster.left_ms)
        except KafkaError:
            if trimmed := _trimmed(cluster, begins, due):
                _print_trimmed(begins, trimmed, output)
            raise
    _print_trimmed(begins, targets, output)
    if not execute:
        click.echo("Nothing was deleted; --execute deletes.", err=True)


def _print_trimmed(begins: Mapping[TopicPartition, int], targets: Mapping[TopicPartition, int], output: str) -> None:
    rows = [(*key, begins[key], target, target - begins[key]) for key, target in targets.items()]
    print_rows(("topic", "partition", "log_start_offset", "new_log_start_offset", "records"), rows, output)


def _trimmed(
    cluster: Cluster, begins: Mapping[TopicPartition, int], due: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the log start offsets that have moved, after an error of some partitions; without those not known."""
    listed: dict[TopicPartition, ListedOffset] = {}
    with suppress(KafkaError):
        # The error may have come at the end of the time limit.
        deadline = cluster.client.deadline(max(cluster.left_ms, _LIST_MS))
        list_offsets(cluster.client, dict.fromkeys(due, EARLIEST), deadline=deadline, into=listed)
    return {key: listed[key].offset for key in due if key in listed and listed[key].offset > begins[key]}


def _ends_to_trim(
    admin: Admin, cluster: Cluster, keys: list[TopicPartition], before_offset: int | None, before_ms: int | None
) -> dict[TopicPartition, int]:
    """Return the first offset to keep; with neither an offset nor a time, the end of the log."""
    ends = _offsets(admin, cluster, keys, LATEST)
    if before_ms is not None:
        offsets = _offsets(admin, cluster, keys, before_ms)
        return {key: offsets[key] if offsets[key] >= 0 else ends[key] for key in keys}
    return ends if before_offset is None else {key: min(before_offset, end) for key, end in ends.items()}


def _offsets(admin: Admin, cluster: Cluster, keys: list[TopicPartition], moment: int) -> dict[TopicPartition, int]:
    listed = admin.list_offsets(dict.fromkeys(keys, moment), timeout_ms=cluster.left_ms)
    return {key: offset.offset for key, offset in listed.items()}


@topics.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "--last",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Records to read per partition, the latest ones.",
)
@output_option
@asks_brokers
def analyze(cluster: Cluster, name: str, last: int, output: str) -> None:
    """Show per partition: records and bytes of the log, and from a sample rates, sizes, key skew and the time span.

    BYTES is the size on the leader's disk. The sample gives RECORDS-PER-S, BYTES-PER-RECORD (uncompressed key and
    value), NULL-KEYS, KEYS (distinct) and TOP-KEY-SHARE, the share of the most frequent key.

    \b
    Examples:
      pykafka topics analyze orders
      pykafka topics analyze orders --last 100000 -o csv
    """
    from spark_kafka_source.cli.topic_sample import COLUMNS, sample_partitions  # reads records

    print_rows(COLUMNS, sample_partitions(cluster, name, last), output)
