"""`pykafka groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from protocol.admin.groups import CLASSIC, CONSUMER, delete_group, describe_group, list_groups
from protocol.admin.resources import results_of_each
from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.group.commits.committed_offsets import fetch_offsets
from spark_kafka_source.cli import described
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.group_commands import WITHOUT_MEMBERS, clone, lag, remove_members, show_new_offsets
from spark_kafka_source.cli.new_offsets import new_offsets, partitions_to_reset, source_offsets, specification
from spark_kafka_source.cli.offset_files import read_offsets, write_offsets
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import DURATION, TIME, TOPIC_PARTITIONS, Parsed

OFFSETS_FILE = Parsed("file", read_offsets)
_STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
_AFTER_RESET = (
    "The group has no members. A running query that commits to it without being a member restores its own offsets "
    "within a minute; stop it before a reset."
)
# The group with the marker of an exactly-once task: prefix, query id, task.
_OF_TASK = re.compile(r".+-[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}-[0-9]+")


@click.group()
def groups() -> None:
    """List, describe, reset, clone and delete consumer groups; show their lag, remove their members."""


for _command in (clone, lag, remove_members):
    groups.add_command(_command)


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES, case_sensitive=False),
    help="Only groups in this state.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice((CLASSIC, CONSUMER), case_sensitive=False),
    help="Only this type.",
)
@click.option("--all", "of_tasks", is_flag=True, help="Include the groups of exactly-once tasks.")
@output_option
@asks_brokers
def list_command(
    cluster: Cluster, states: tuple[str, ...], types: tuple[str, ...], of_tasks: bool, output: str
) -> None:
    """List consumer groups by their type (the protocol of their members) and state.

    An exactly-once write has a group for each of its tasks; --all includes them.

    \b
    Examples:
      pykafka groups list --bootstrap-server broker-1:9092
      pykafka groups list --state Empty --state Dead --output csv
      pykafka groups list --all
    """
    listed_groups = list_groups(cluster.client, cluster.deadline)
    hidden = [
        group
        for group in listed_groups
        if not of_tasks and group.state in WITHOUT_MEMBERS and _OF_TASK.fullmatch(group.group)
    ]
    rows = [
        (group.group, group.type, group.state or None)
        for group in listed_groups
        if (not states or group.state in states) and (not types or group.type in types) and group not in hidden
    ]
    print_rows(("group", "type", "state"), rows, output)
    if hidden:
        click.echo(f"Not shown: {len(hidden)} groups of tasks of exactly-once writes; --all shows them.", err=True)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="The members and their partitions.")
@click.option("--state", is_flag=True, help="The state, the coordinator and the number of members.")
@output_option
@asks_brokers
def describe(cluster: Cluster, names: tuple[str, ...], members: bool, state: bool, output: str) -> None:
    """Show the lag of groups by partition, in offsets and in seconds.

    Lag in seconds is the age of the first record that is not committed.

    \b
    Examples:
      pykafka groups describe orders-etl --bootstrap-server broker-1:9092
      pykafka groups describe orders-etl payments-etl --members
      pykafka groups describe orders-etl --output json
    """
    if members and state:
        raise click.UsageError("Give either --members or --state.")
    descriptions = [describe_group(cluster.client, name, cluster.deadline) for name in dict.fromkeys(names)]
    existing = [description for description in descriptions if description.state != "Dead"]
    columns, rows_of = described.VIEWS["members" if members else "state" if state else "offsets"]
    if existing:
        print_rows(columns, [row for group in existing for row in rows_of(cluster, group)], output)
    missing = [description.group for description in descriptions if description not in existing]
    if missing:
        raise click.ClickException(
            listed([f"Consumer group '{name}' does not exist" for name in missing], separator="; ") + "."
        )


@groups.command()
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    type=TOPIC_PARTITIONS,
    multiple=True,
    metavar="TOPIC[:0,1]",
    shell_complete=complete_topics,
    help="All or some partitions of a topic.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--to-earliest", type=bool, is_flag=True, default=None, help="To the log start offset.")
@click.option("--to-latest", type=bool, is_flag=True, default=None, help="To the log end offset.")
@click.option("--to-datetime", type=TIME, help="To the first record at or after a time: 2026-01-31T06:00:00Z.")
@click.option("--by-duration", type=DURATION, help="To the first record of the last 7d, 90m, P1DT6H.")
@click.option("--shift-by", type=int, help="Forward by this number of offsets; back if negative.")
@click.option("--to-offset", type=click.IntRange(0), help="To this offset.")
@click.option("--to-current", type=bool, is_flag=True, default=None, help="To the committed offset; for --to-file.")
@click.option(
    "--to-group", metavar="GROUP", shell_complete=complete_groups, help="To the committed offsets of another group."
)
@click.option("--from-file", type=OFFSETS_FILE, help="To the offsets of a CSV file: topic,partition,offset.")
@click.option(
    "--to-file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the new offsets to a CSV file, for --from-file.",
)
@click.option("--execute", is_flag=True, help="Change the offsets. Without it, nothing changes.")
@output_option
@asks_brokers
def reset(
    cluster: Cluster,
    group: str,
    topics: tuple[tuple[str, tuple[int, ...] | None], ...],
    all_topics: bool,
    path: Path | None,
    execute: bool,
    output: str,
    **ways: Any,
) -> None:
    """Move the offsets of a group without members. Without --execute, only show the new offsets.

    Stop the group's queries first: brokers do not refuse a reset while a query runs that is not a member, and the query
    commits its own offsets again within a minute. A restarted query does so, too, since it resumes at its checkpoint.
    Only a query with a new checkpoint starts at the group's offsets.

    \b
    Examples:
      pykafka groups reset orders-etl --all-topics --to-latest --bootstrap-server broker-1:9092
      pykafka groups reset orders-etl --topic orders:0,1 --shift-by -100 --execute
      pykafka groups reset orders-etl --topic orders --to-datetime 2026-01-31T06:00:00Z --execute
      pykafka groups reset orders-etl --all-topics --to-current --to-file offsets.csv
    """
    ways_chosen = specification(ways)
    if bool(topics) == all_topics and not (ways_chosen.way == "from_file" and not topics):
        raise click.UsageError("Give either --topic or --all-topics.")
    state = describe_group(cluster.client, group, cluster.deadline).state
    if state not in WITHOUT_MEMBERS:
        # The text of Kafka's own tool.
        raise click.ClickException(
            f"Assignments can only be reset if the group '{group}' is inactive, but the current state is {state}."
        )
    client, deadline = cluster.client, cluster.deadline
    committed = fetch_offsets(client, group, None, deadline, require_stable=False)
    source = source_offsets(client, ways_chosen, committed, deadline)
    if ways_chosen.way == "from_file" and not topics:
        topics = tuple((topic, (partition,)) for topic, partition in source)
    keys = partitions_to_reset(client, topics, source, deadline)
    offsets = new_offsets(client, ways_chosen, keys, source, deadline)
    if path is not None:
        write_offsets(path, {key: to.offset for key, to in offsets.items()})
    show_new_offsets(cluster, group, committed, offsets, output, execute=execute)
    note = _AFTER_RESET if execute else "Nothing was changed; --execute changes the offsets."
    click.echo(note, err=True)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def delete(cluster: Cluster, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups without members, with their offsets, after confirmation.

    \b
    Examples:
      pykafka groups delete orders-test --bootstrap-server broker-1:9092
      pykafka groups delete orders-test payments-test --yes
    """
    if not yes:
        click.confirm(f"Delete {', '.join(names)}, with all offsets?", abort=True, err=True)

    def delete_one(name: str, deadline: Deadline) -> None:
        delete_group(cluster.client, name, deadline)
        click.echo(f"deleted {name}")

    results_of_each("DeleteGroups", names, cluster.deadline, delete_one)
