"""`pykafka doctor`: check this machine's way to the records, step by step, each with its remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from spark_kafka_source.cli import doctor_checks as checks
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.doctor_checks import Finding
from spark_kafka_source.cli.rows import output_option, print_rows

_COLORS = {checks.OK: "green", checks.WARNING: "yellow", checks.FAILED: "red", checks.SKIPPED: "bright_black"}


@click.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Check this topic and its ACLs; repeatable.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Check this group and its ACLs; repeatable.",
)
@click.option(
    "--write",
    "written",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Write a record to this topic, and read it back.",
)
@output_option
@asks_brokers
def doctor(
    cluster: Cluster, topics: tuple[str, ...], groups: tuple[str, ...], written: tuple[str, ...], output: str
) -> None:
    """Check Python, network, TLS, SASL, API versions, ACLs, clocks and records. Exit with 1 if a check fails.

    Nothing is written without --write. PYSPARK_PYTHON, if set, is checked as the Python of Spark's workers.

    \b
    Examples:
      pykafka doctor --bootstrap-server broker-1:9092
      pykafka doctor --command-config prod.properties --topic orders --group orders-etl --write doctor-test
    """
    found = []
    for finding in _findings(cluster, topics, groups, written):
        found.append(finding)
        if output == "table":
            _print(finding)
    failed = sum(each.status == checks.FAILED for each in found)
    if output != "table":
        columns = ("check", "subject", "status", "detail", "remedy")
        rows = [(each.check, each.subject, each.status, each.detail, each.remedy) for each in found]
        print_rows(columns, rows, output)
    if failed:
        raise click.ClickException(f"{failed} of {len(found)} checks failed")


def _findings(
    cluster: Cluster, topics: tuple[str, ...], groups: tuple[str, ...], written: tuple[str, ...]
) -> Iterator[Finding]:
    yield from checks.check_python()
    network = list(checks.check_network(cluster))
    yield from network
    if not any((each.check, each.status) == ("tcp", checks.OK) for each in network):
        return
    connections = list(checks.check_connections(cluster))
    yield from connections
    if not any(each.status == checks.OK for each in connections):
        return
    yield from checks.check_clock(cluster)
    for topic in topics:
        of_topic = list(checks.check_topic(cluster, topic))
        yield from of_topic
        if of_topic[0].status == checks.OK:
            yield from checks.check_read(cluster, topic)
    for group in groups:
        yield from checks.check_group(cluster, group)
    for topic in written:
        yield from checks.check_write(cluster, topic)


def _print(finding: Finding) -> None:
    status = finding.status
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        status = click.style(status, fg=_COLORS[status], bold=True)
    padding = " " * (len(checks.WARNING) - len(finding.status))
    detail = " ".join(finding.detail.split())
    click.echo(f"{status}{padding}  {finding.check}  {finding.subject}: {detail}")
    if finding.remedy is not None and finding.status != checks.OK:
        click.echo(f"{' ' * len(checks.WARNING)}  → {finding.remedy}")
