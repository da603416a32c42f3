"""`pykafka doctor`: check this machine's way to the records, step by step, each with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import click

import protocol
from spark_kafka_source.cli import doctor_checks as checks
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.doctor_checks import Finding
from spark_kafka_source.cli.profiles import shown
from spark_kafka_source.cli.rows import output_option, print_rows

_COLORS = {checks.OK: "green", checks.WARNING: "yellow", checks.FAILED: "red", checks.SKIPPED: "bright_black"}
_PACKAGES = ("pyspark", "databricks-connect", "pyarrow", "numpy", "crc32c", "lz4", "pandas", "cryptography")


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
@click.option(
    "--report", is_flag=True, help="Print Markdown for a bug report: versions, properties without secrets, the checks."
)
@output_option
@asks_brokers
def doctor(
    cluster: Cluster,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    written: tuple[str, ...],
    report: bool,
    output: str,
) -> None:
    """Check Python, network, TLS, SASL, API versions, ACLs, clocks and records. Exit with 1 if a check fails.

    Nothing is written without --write. PYSPARK_PYTHON, if set, is checked as the Python of Spark's workers.

    \b
    Examples:
      pykafka doctor --bootstrap-server broker-1:9092
      pykafka doctor --command-config prod.properties --topic orders --group orders-etl --write doctor-test
    """
    if report and output != "table":
        raise click.UsageError("--report prints Markdown; leave out --output.")
    cluster = replace(cluster, writes=bool(written))
    findings = []
    for finding in _findings(cluster, topics, groups, written):
        findings.append(finding)
        if output == "table" and not report:
            _print(finding)
    failed = sum(finding.status == checks.FAILED for finding in findings)
    columns = ("check", "subject", "status", "detail", "remedy")
    rows = [(finding.check, finding.subject, finding.status, finding.detail, finding.remedy) for finding in findings]
    if report:
        click.echo(_report({**cluster.properties, **cluster.registry}, columns, rows))
    elif output != "table":
        print_rows(columns, rows, output)
    if failed:
        raise click.ClickException(f"{failed} of {len(findings)} checks failed")


def _findings(
    cluster: Cluster, topics: tuple[str, ...], groups: tuple[str, ...], written: tuple[str, ...]
) -> Iterator[Finding]:
    yield from checks.check_python()
    network = list(checks.check_network(cluster))
    yield from network
    if not any((finding.check, finding.status) == ("tcp", checks.OK) for finding in network):
        return
    connections = list(checks.check_connections(cluster))
    yield from connections
    if not any(connection.status == checks.OK for connection in connections):
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


def _report(properties: Mapping[str, str], columns: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    """Return Markdown: this machine, its packages, the properties without secrets, and the checks."""
    packages = {row.metadata["Name"].lower(): row.version for row in importlib.metadata.distributions()}
    versions = {
        "spark-kafka-source": protocol.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        **{name: packages[name] for name in _PACKAGES if name in packages},
    }
    values = {name: shown(name, value) for name, value in sorted(properties.items())}
    tables = (
        _table(("version of", ""), versions.items()),
        _table(("property", ""), values.items()),
        _table(columns, rows),
    )
    return "\n\n".join(tables)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str | None]]) -> str:
    """Return a table in Markdown."""
    heads = list(columns)
    cells = [[" ".join((cell or "").replace("|", "\\|").split()) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells))


def _print(finding: Finding) -> None:
    status = finding.status
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        status = click.style(status, fg=_COLORS[status], bold=True)
    padding = " " * (len(checks.WARNING) - len(finding.status))
    detail = " ".join(finding.detail.split())
    click.echo(f"{status}{padding}  {finding.check}  {finding.subject}: {detail}")
    if finding.remedy is not None and finding.status != checks.OK:
        click.echo(f"{' ' * len(checks.WARNING)}  → {finding.remedy}")
