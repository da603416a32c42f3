"""`pykafka cluster`: describe brokers, features, the metadata quorum and log directories; set feature levels."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from protocol.admin.admin import Admin
from protocol.admin.cluster import FeatureUpdate, UpgradeType
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs
from spark_kafka_source.cli.rows import output_option, print_rows

_DIRECTIONS = {each.name.lower().replace("_", "-"): each for each in UpgradeType}


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
    found = Admin(cluster.client).describe_cluster(include_fenced_brokers=fenced, timeout_ms=cluster.left_ms)
    rows = [
        (
            *(found.cluster_id, number, each.host, each.port, each.rack, number == found.controller),
            *((number in found.fenced,) if fenced else ()),
        )
        for number, each in sorted(found.brokers.items())
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
    found = Admin(cluster.client).describe_features(node_id=node_id, timeout_ms=cluster.left_ms)
    rows = [(each.name, each.min_supported, each.max_supported, each.finalized) for each in found.values()]
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
    found = Admin(cluster.client).describe_metadata_quorum(timeout_ms=cluster.left_ms)
    end = max(each.log_end_offset for each in (*found.voters, *found.observers))
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            *(each.replica_id, "leader" if each.replica_id == found.leader_id else role),
            *(each.log_end_offset, end - each.log_end_offset),
            None if each.last_caught_up_ms is None else max(0, now_ms - each.last_caught_up_ms) / 1000,
        )
        for role, replicas in (("voter", found.voters), ("observer", found.observers))
        for each in replicas
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
    found = Admin(cluster.client).describe_log_dirs(node_ids or None, timeout_ms=cluster.left_ms)
    directories = [(number, path, each) for number, paths in sorted(found.items()) for path, each in paths.items()]
    if replicas:
        of_replicas = [
            (number, path, *key, replica.size_bytes, replica.offset_lag)
            for number, path, each in directories
            for key, replica in sorted(each.replicas.items())
        ]
        print_rows(("broker", "directory", "topic", "partition", "bytes", "offset_lag"), of_replicas, output)
        return
    rows = [
        (
            *(number, path, len(each.replicas), sum(replica.size_bytes for replica in each.replicas.values())),
            *(each.usable_bytes, each.total_bytes, None if each.error is None else str(each.error)),
        )
        for number, path, each in directories
    ]
    print_rows(("broker", "directory", "replicas", "bytes", "usable_bytes", "total_bytes", "error"), rows, output)
