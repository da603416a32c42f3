"""`pykafka cluster`: describe brokers, features, the metadata quorum and log directories; set feature levels."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from protocol.admin.admin import Admin
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import choice_of

_DIRECTIONS = {choice_of(upgrade): upgrade for upgrade in UpgradeType}


@click.group("cluster")
def cluster_group() -> None:
    """Describe brokers, features, the metadata quorum and log directories; set feature levels."""


@cluster_group.command()
@click.option("--fenced", is_flag=True, help="Include registered brokers that are not active (Kafka 4.0 or later).")
@output_option
@asks_brokers
def describe(cluster: Cluster, fenced: bool, output: str) -> None:
    """Show the cluster id and the brokers, with their addresses and racks.

    \b
    Examples:
      pykafka cluster describe
      pykafka cluster describe --fenced -o json
    """
    cluster_description = Admin(cluster.client).describe_cluster(
        include_fenced_brokers=fenced, timeout_ms=cluster.left_ms
    )
    rows = [
        (
            *(
                cluster_description.cluster_id,
                number,
                broker.host,
                broker.port,
                broker.rack,
                number == cluster_description.controller,
            ),
            *((number in cluster_description.fenced,) if fenced else ()),
        )
        for number, broker in sorted(cluster_description.brokers.items())
    ]
    columns = ("cluster_id", "broker", "host", "port", "rack", "controller", *(("fenced",) if fenced else ()))
    print_rows(columns, rows, output)


@cluster_group.command()
@click.option("--broker", "node_id", type=click.IntRange(0), help="The broker to ask.  [default: the controller]")
@output_option
@asks_brokers
def features(cluster: Cluster, node_id: int | None, output: str) -> None:
    """Show the features that a broker supports, and their level in the cluster.

    \b
    Examples:
      pykafka cluster features
      pykafka cluster features --broker 1 -o csv
    """
    descriptions = Admin(cluster.client).describe_features(node_id=node_id, timeout_ms=cluster.left_ms)
    rows = [
        (feature.name, feature.min_supported, feature.max_supported, feature.finalized)
        for feature in descriptions.values()
    ]
    print_rows(("feature", "min_supported", "max_supported", "level"), rows, output)


@cluster_group.command("set-features")
@click.argument("levels", metavar="FEATURE=LEVEL...", nargs=-1, required=True, callback=pairs)
@click.option(
    "--direction",
    type=click.Choice(list(_DIRECTIONS)),
    default="upgrade",
    show_default=True,
    help="A downgrade must be allowed.",
)
@click.option("--execute", is_flag=True, help="Change the levels. Without it, brokers only check the change.")
@asks_brokers
def set_features(cluster: Cluster, levels: Mapping[str, str], direction: str, execute: bool) -> None:
    """Change levels of features. Without --execute, brokers only check the change. 0 removes a feature.

    \b
    Examples:
      pykafka cluster set-features transaction.version=2
      pykafka cluster set-features group.version=1 --execute
    """
    try:
        updates = {name: FeatureUpdate(int(level), _DIRECTIONS[direction]) for name, level in levels.items()}
    except ValueError as error:
        raise click.UsageError("A level is a whole number.") from error
    Admin(cluster.client).update_features(updates, validate_only=not execute, timeout_ms=cluster.left_ms)
    for name, level in levels.items():
        click.echo(f"{'set' if execute else 'valid'} {name}={level}")
    if not execute:
        click.echo("Nothing was changed; --execute changes the levels.", err=True)


@cluster_group.command()
@output_option
@asks_brokers
def quorum(cluster: Cluster, output: str) -> None:
    """Show the voters and observers of the metadata log, with their lag behind the leader.

    \b
    Examples:
      pykafka cluster quorum
      pykafka cluster quorum -o yaml
    """
    metadata_quorum = Admin(cluster.client).describe_metadata_quorum(timeout_ms=cluster.left_ms)
    end = max(voter.log_end_offset for voter in (*metadata_quorum.voters, *metadata_quorum.observers))
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            *(replica.replica_id, "leader" if replica.replica_id == metadata_quorum.leader_id else role),
            *(replica.log_end_offset, end - replica.log_end_offset),
            None if replica.last_caught_up_ms is None else max(0, now_ms - replica.last_caught_up_ms) / 1000,
        )
        for role, replicas in (("voter", metadata_quorum.voters), ("observer", metadata_quorum.observers))
        for replica in replicas
    ]
    print_rows(("replica", "role", "log_end_offset", "lag", "caught_up_seconds_ago"), rows, output)


@cluster_group.command("log-dirs")
@click.option("--broker", "node_ids", type=click.IntRange(0), multiple=True, help="Only this broker; repeatable.")
@click.option("--replicas", is_flag=True, help="A row for each replica instead of each directory.")
@output_option
@asks_brokers
def log_dirs(cluster: Cluster, node_ids: tuple[int, ...], replicas: bool, output: str) -> None:
    """Show the log directories of brokers with their bytes, or the replicas in them.

    \b
    Examples:
      pykafka cluster log-dirs
      pykafka cluster log-dirs --broker 1 --replicas -o csv
    """
    log_dirs_by_broker = Admin(cluster.client).describe_log_dirs(node_ids or None, timeout_ms=cluster.left_ms)
    directories = [
        (number, path, log_dir)
        for number, paths in sorted(log_dirs_by_broker.items())
        for path, log_dir in paths.items()
    ]
    if replicas:
        of_replicas = [
            (number, path, *key, replica.size_bytes, replica.offset_lag)
            for number, path, log_dir in directories
            for key, replica in sorted(log_dir.replicas.items())
        ]
        print_rows(("broker", "directory", "topic", "partition", "bytes", "offset_lag"), of_replicas, output)
        return
    rows = [
        (
            *(number, path, len(log_dir.replicas), sum(replica.size_bytes for replica in log_dir.replicas.values())),
            *(log_dir.usable_bytes, log_dir.total_bytes, None if log_dir.error is None else str(log_dir.error)),
        )
        for number, path, log_dir in directories
    ]
    print_rows(("broker", "directory", "replicas", "bytes", "usable_bytes", "total_bytes", "error"), rows, output)
