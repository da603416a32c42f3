"""`pykafka groups clone`, `remove-members` and `lag`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

import click

from protocol.admin.admin import Admin
from protocol.admin.groups import CLASSIC, describe_group
from protocol.base.listing import listed
from protocol.errors import KafkaError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.cli import described
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, prints_done
from spark_kafka_source.cli.rows import Columns, Rows, output_option, print_rows, table_of
from spark_kafka_source.cli.stop_signals import StopRequest, stop_request
from spark_kafka_source.cli.values import DURATION

WITHOUT_MEMBERS = ("Empty", "Dead")
# Least time to fetch what a failed command has changed.
_FETCH_MS = 2_000

Offsets = Mapping[TopicPartition, CommittedOffset]


@click.command()
@click.argument("source", metavar="GROUP", shell_complete=complete_groups)
@click.argument("target", metavar="NEW-GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Only offsets of this topic; repeatable.",
)
@click.option("--execute", is_flag=True, help="Commit the offsets. Without it, nothing changes.")
@output_option
@asks_brokers
def clone(cluster: Cluster, source: str, target: str, topics: tuple[str, ...], execute: bool, output: str) -> None:
    """Copy the committed offsets of a group to another group without members. Without --execute, only show them.

    \b
    Examples:
      pykafka groups clone orders-etl orders-etl-test
      pykafka groups clone orders-etl orders-etl-test --topic orders --execute
    """
    state = describe_group(cluster.client, target, cluster.deadline).state
    if state not in WITHOUT_MEMBERS:
        raise click.ClickException(f"Group '{target}' has members (state {state}); stop them.")
    committed, before = (
        fetch_offsets(cluster.client, group, None, cluster.deadline, require_stable=False) for group in (source, target)
    )
    offsets = {key: offset for key, offset in committed.items() if not topics or key[0] in topics}
    if not offsets:
        raise click.ClickException(f"Group '{source}' has no committed offsets{' of these topics' if topics else ''}.")
    show_new_offsets(cluster, target, before, offsets, output, execute=execute)
    if not execute:
        click.echo("Nothing was changed; --execute commits the offsets.", err=True)


def show_new_offsets(
    cluster: Cluster, group: str, before: Offsets, offsets: Offsets, output: str, *, execute: bool
) -> None:
    """Print former and new offsets; with `execute`, commit first, and after an error print those that have changed."""

    def show(shown: Offsets) -> None:
        rows = [
            (group, *key, before[key].offset if key in before else None, offset.offset)
            for key, offset in sorted(shown.items())
        ]
        print_rows(("group", "topic", "partition", "current_offset", "new_offset"), rows, output)

    if execute:
        try:
            commit_offsets(cluster.client, group, offsets, cluster.deadline)
        except KafkaError:
            present: Offsets = {}
            with suppress(KafkaError):
                # The error may have come at the end of the time limit.
                deadline = cluster.client.deadline(max(cluster.left_ms, _FETCH_MS))
                present = fetch_offsets(cluster.client, group, None, deadline, require_stable=False)
            changed = {
                key: offset
                for key, offset in offsets.items()
                if key in present and present[key].offset == offset.offset and before.get(key) != present[key]
            }
            if changed:
                show(changed)
            raise
    show(offsets)


@click.command("remove-members")
@click.argument("group", shell_complete=complete_groups)
@click.option("--instance-id", "instance_ids", multiple=True, metavar="ID", help="A static member; repeatable.")
@click.option("--all", "everyone", is_flag=True, help="All members.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@asks_brokers
def remove_members(cluster: Cluster, group: str, instance_ids: tuple[str, ...], everyone: bool, yes: bool) -> None:
    """Remove static members, or all members, from a classic group, after confirmation.

    A running member joins again; a static member that is gone no longer delays the group until session.timeout.ms.

    \b
    Examples:
      pykafka groups remove-members orders-etl --instance-id worker-3
      pykafka groups remove-members orders-etl --all --yes
    """
    if bool(instance_ids) == everyone:
        raise click.UsageError("Give either --instance-id or --all.")
    described_group = describe_group(cluster.client, group, cluster.deadline)
    if described_group.state == "Dead":
        raise click.ClickException(f"Consumer group '{group}' does not exist.")
    if described_group.type != CLASSIC:
        raise click.ClickException(f"Group '{group}' uses the consumer protocol, which cannot remove members.")
    names = {name: name for name in instance_ids} or {
        member.member_id: member.group_instance_id or member.member_id for member in described_group.members
    }
    if not names:
        raise click.ClickException(f"Group '{group}' has no members.")
    if not yes:
        click.confirm(f"Remove {', '.join(names.values())} from {group}?", abort=True, err=True)
    with prints_done("removed", names):
        Admin(cluster.client).remove_members(group, instance_ids or None, timeout_ms=cluster.left_ms)


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) < 65536:
        raise click.BadParameter(f"{text} is not [HOST]:PORT, such as :9308 or 127.0.0.1:9308.")
    return host.strip("[]"), int(port)


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; JSON lines unless on a terminal.")
@click.option("--interval", "interval_ms", type=DURATION, default="5s", show_default=True, help="Time between two.")
@click.option("-n", "--count", type=click.IntRange(1), help="With --watch: end after this number of times.")
@click.option(
    "--serve",
    "address",
    metavar="[HOST]:PORT",
    callback=_address,
    help="Serve the lag for Prometheus until Ctrl-C, computed for each request; needs the extra prometheus.",
)
@output_option
@asks_brokers
def lag(
    cluster: Cluster,
    names: tuple[str, ...],
    watch: bool,
    interval_ms: int,
    count: int | None,
    address: tuple[str, int] | None,
    output: str,
) -> None:
    """Show the lag of groups by topic: the sum in offsets, the largest in offsets and in seconds.

    \b
    Examples:
      pykafka groups lag orders-etl payments-etl
      pykafka groups lag orders-etl --watch --interval 2s
      pykafka groups lag orders-etl --serve :9308
    """
    if address is not None:
        if watch:
            raise click.UsageError("Give only one of --watch and --serve.")
        _serve(cluster, names, *address)
        return
    if not watch:
        rows = _lag_rows(cluster, names)
        print_rows(_LAG_COLUMNS, rows, output)
        if missing := sorted(set(names) - {row[0] for row in rows}):
            raise click.ClickException(
                f"no lag of {listed(missing)}: the group does not exist, or has neither offsets nor partitions"
            )
        return
    with stop_request(prints=True) as stop:
        if output == "table" and sys.stdout.isatty():
            from rich.live import Live

            with Live(auto_refresh=False) as live:
                for rows in _repeated(cluster, names, interval_ms, count, stop):
                    live.update(table_of(_LAG_COLUMNS, rows), refresh=True)
        else:
            for rows in _repeated(cluster, names, interval_ms, count, stop):
                now_ms = cluster.client.clock.wall_ms()
                for row in rows:
                    click.echo(json.dumps({"timestamp_ms": now_ms, **dict(zip(_LAG_COLUMNS, row, strict=True))}))


def _serve(cluster: Cluster, names: tuple[str, ...], host: str, port: int) -> None:
    from spark_kafka_source.lag.prometheus import NamedLag, serve

    def read() -> Iterator[NamedLag]:
        now = cluster.restarted()
        for name in dict.fromkeys(names):
            group = describe_group(now.client, name, now.deadline)
            yield NamedLag(name, described.lag_of(now, group), len(group.members))

    list(read())  # fails now if brokers do not reply
    with stop_request(prints=False) as stop:
        try:
            server, thread = serve(port, read, host or "0.0.0.0")  # noqa: S104
        except OSError as error:
            raise click.ClickException(f"{host}:{port}: {error.strerror}") from error
        click.echo(f"serving the lag of {', '.join(names)} at http://{host or '0.0.0.0'}:{server.server_port}/metrics")  # noqa: S104
        stop.wait()
        server.shutdown()
        thread.join()


_LAG_COLUMNS: Columns = ("group", "state", "members", "topic", "partitions", "lag", "max_lag", "max_lag_seconds")


def _repeated(
    cluster: Cluster, names: tuple[str, ...], interval_ms: int, count: int | None, stop: StopRequest
) -> Iterator[Rows]:
    while not stop:
        yield _lag_rows(cluster.restarted(), names)
        count = None if count is None else count - 1
        if count == 0:
            return
        stop.wait(interval_ms / 1000)


def _lag_rows(cluster: Cluster, names: tuple[str, ...]) -> Rows:
    rows = []
    for name in dict.fromkeys(names):
        group = describe_group(cluster.client, name, cluster.deadline)
        lags = described.lag_of(cluster, group)
        for topic in sorted({row.topic for row in lags}):
            of_topic = [row for row in lags if row.topic == topic]
            behind = [row.offsets_behind for row in of_topic if row.offsets_behind is not None]
            seconds = [row.seconds_behind for row in of_topic if row.seconds_behind is not None]
            largest = (sum(behind) if behind else None, max(behind, default=None), max(seconds, default=None))
            rows.append((name, group.state, len(group.members), topic, len(of_topic), *largest))
    return rows
