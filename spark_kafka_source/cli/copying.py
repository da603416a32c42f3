"""`pykafka copy` and `pykafka replay`: write the records of a topic to another one, or back to where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.consumer.out_of_range import check_committed
from protocol.errors import ConfigurationError, KafkaError
from protocol.fetch.log_offsets import Range
from protocol.group.commits.committed_offsets import commit_offsets, fetch_start_offsets, to_commit
from protocol.kafka_terms import NO_TOPIC_ID, TopicIds, TopicPartition
from protocol.position import Position
from protocol.producer.topics import topic_to_write
from protocol.settings.config_providers import ENCODING, parse_java_properties
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, pairs
from spark_kafka_source.cli.positions import SPAN, Span
from spark_kafka_source.cli.progress import advancing
from spark_kafka_source.cli.record_copies import READ_COLUMNS, Copy, TopicHeaders
from spark_kafka_source.cli.record_sources import follow, ranges_between, read_ranges, span_positions
from spark_kafka_source.cli.rows import long_output_option, print_rows
from spark_kafka_source.cli.stop_signals import StopRequest, stop_request
from spark_kafka_source.cli.values import NUMBERS
from spark_kafka_source.cli.written import producing

# Kafka Connect, Kafka Streams (KIP-1034), Spring.
_TOPIC_HEADERS = ("__connect.errors.topic", "__streams.errors.topic", "kafka_dlt-original-topic")
_ERROR_PREFIXES = ("__connect.errors.", "__streams.errors.", "kafka_dlt-")


@click.command()
@click.argument("source", shell_complete=complete_topics)
@click.argument("target", shell_complete=complete_topics)
@click.option("-o", "--offset", "span", type=SPAN, default="earliest", show_default=True, help="As of consume.")
@click.option("-p", "--partition", "partitions", type=NUMBERS, help="Only these partitions: 0 or 0,3.")
@click.option("-n", "--count", "limit", type=click.IntRange(1), help="Copy at most this number of records.")
@click.option("--keep-partitions", is_flag=True, help="Write to the partition of the same number, not by the key.")
@click.option("--follow", "follows", is_flag=True, help="Copy new records until Ctrl-C.")
@click.option("--to-bootstrap-server", metavar="HOST:PORT", help="Brokers of another cluster.")
@click.option(
    "--to-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file for the other cluster.",
)
@click.option(
    "--to-property",
    "to_properties",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="A property of the producer or the other cluster; repeatable.",
)
@long_output_option
@asks_brokers
def copy(
    cluster: Cluster,
    source: str,
    target: str,
    span: Span,
    partitions: tuple[int, ...] | None,
    limit: int | None,
    keep_partitions: bool,
    follows: bool,
    to_bootstrap_server: str | None,
    to_config: Path | None,
    to_properties: Mapping[str, str],
    output: str,
) -> None:
    """Copy records with keys, headers and timestamps to another topic, also of another cluster.

    Without --follow, stops at the log ends found at the start. The target topic must exist. Shows the offsets written.

    A record above max.request.size ends the command. The records before it in its partition are written, no later ones.

    \b
    Examples:
      pykafka copy orders orders-test -o -1000
      pykafka copy orders orders --to-bootstrap-server test-broker-1:9092 --keep-partitions --follow
    """
    target_properties = {} if to_config is None else parse_java_properties(to_config.read_text(ENCODING))
    target_properties |= to_properties
    if to_bootstrap_server is not None:
        target_properties["bootstrap.servers"] = to_bootstrap_server
    if to_config is None and "bootstrap.servers" not in target_properties:
        if source == target:
            raise _same_topic()
        target_properties = {**cluster.of_producer, **target_properties}
        cluster = replace(cluster, writes=True)
    with stop_request() as stop, ExitStack() as opened:
        is_other_client = target_properties != cluster.of_producer
        client = opened.enter_context(_client(target_properties)) if is_other_client else cluster.client
        starts, ends = span_positions(cluster, source, partitions, span)
        written = topic_to_write(client, target, None, cluster.deadline)
        source_topic = cluster.client.remembered_topic(source)
        # Another address may be that of the same cluster.
        if source_topic is not None and source_topic.topic_id == written.topic_id != NO_TOPIC_ID:
            raise _same_topic()
        copied = opened.enter_context(_copying(client, target_properties, output, target, keep_partitions, limit))
        if follows and span.end is None:
            follow(cluster, starts, READ_COLUMNS, copied, stop)
        else:
            _copy(cluster, ranges_between(starts, ends), copied, stop)


@click.command()
@click.argument("dead_letters", metavar="DLQ", shell_complete=complete_topics)
@click.option("-o", "--offset", "span", type=SPAN, default="earliest", show_default=True, help="As of consume.")
@click.option("-p", "--partition", "partitions", type=NUMBERS, help="Only these partitions: 0 or 0,3.")
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    help="Start at the offsets of this group, and commit after the records are written.",
)
@click.option(
    "--topic-header",
    "topic_headers",
    multiple=True,
    metavar="NAME",
    default=_TOPIC_HEADERS,
    show_default=True,
    help="Header that names the topic; repeatable: the first one found in a record is used.",
)
@click.option(
    "--to",
    "default",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="The topic of records without such a header.  [default: skip them]",
)
@click.option(
    "--keep-headers", is_flag=True, help=f"Keep the headers {', '.join(f'{prefix}*' for prefix in _ERROR_PREFIXES)}"
)
@click.option("--execute", is_flag=True, help="Write the records. Without it, only count them.")
@long_output_option
@asks_brokers
def replay(
    cluster: Cluster,
    dead_letters: str,
    span: Span,
    partitions: tuple[int, ...] | None,
    group: str | None,
    topic_headers: tuple[str, ...],
    default: str | None,
    keep_headers: bool,
    execute: bool,
    output: str,
) -> None:
    """Write dead letters back to the topics in their headers. Without --execute, only count them by topic.

    Keys, timestamps and other headers are kept. Dead letters stay in their topic: with --group, the next replay starts
    after the last record of this one, also if that was left out.

    A record above max.request.size, or whose headers name the topic of dead letters, ends the command. The records
    before it in its partition are written, no later ones, and nothing is committed.

    \b
    Examples:
      pykafka replay orders-dlq
      pykafka replay orders-dlq --group orders-dlq-replay --execute
    """
    if default == dead_letters:
        raise _same_topic()
    cluster = replace(cluster, writes=True)
    target = TopicHeaders(topic_headers, default, () if keep_headers else _ERROR_PREFIXES)
    starts, ends = span_positions(cluster, dead_letters, partitions, span)
    if group is not None:
        starts |= _committed(cluster.client, group, {key: end.topic_id for key, end in ends.items()}, cluster.deadline)
    ranges = ranges_between(starts, ends)
    with stop_request() as stop:
        if not execute:
            counted = Copy(None, target)
            _copy(cluster, ranges, counted, stop)
            print_rows(("topic", "records"), sorted(counted.counts.items()), output)
            _tell_left_out(counted)
            click.echo("Nothing was written; --execute writes the records.", err=True)
            return
        with _copying(cluster.client, cluster.of_producer, output, target) as copied:
            _copy(cluster, ranges, copied, stop)
        _tell_left_out(copied)
        if group is not None:
            positions = {source_range.topic_partition: to_commit(source_range.end) for source_range in ranges}
            commit_offsets(cluster.client, group, positions, cluster.client.deadline())


def _same_topic() -> click.UsageError:
    return click.UsageError("Source and target are the same topic of the same cluster.")


@contextmanager
def _client(properties: Mapping[str, str]) -> Iterator[Client]:
    try:
        config = parse_client(properties)
    except ConfigurationError as error:
        raise click.UsageError(f"The properties of the target cluster: {error}") from error
    with Client(config) as client:
        yield client


@contextmanager
def _copying(
    client: Client,
    properties: Mapping[str, str],
    output: str,
    target: str | TopicHeaders,
    keeps_partition: bool = False,
    limit: int | None = None,
) -> Iterator[Copy]:
    """Yield a `Copy` with a producer; at the end, print what it has written. Errors name the source of a record."""
    copied = Copy(None, target, keeps_partition, limit, parse_producer(properties).max_request_size_bytes)
    try:
        with producing(client, properties, output) as copied.producer:
            yield copied
    except KafkaError as error:
        if source := copied.source_of(error):
            raise click.ClickException(f"{source}: {error}") from error
        raise


def _committed(client: Client, group: str, topic_ids: TopicIds, deadline: Deadline) -> dict[TopicPartition, Position]:
    """Return the group's positions; print how many dead letters were deleted.

    A truncated log raises `click.ClickException`.
    """
    positions, lost = check_committed(client, fetch_start_offsets(client, group, topic_ids, deadline), deadline)
    for key, count in sorted(lost.items()):
        text = count.describe(key, f"Group {group}: its")
        if not count.is_deleted:
            reset = f"pykafka groups reset {group} --topic {key[0]}:{key[1]} --to-offset {count.nearest} --execute"
            raise click.ClickException(f"{text}. To start at the nearest offset in the log: {reset}")
        skipped = count.nearest - count.offset
        click.echo(f"{text}. Starts at {count.nearest}: {skipped} offsets are skipped", err=True)
        positions[key] = Position(count.nearest)
    return positions


def _copy(cluster: Cluster, ranges: list[Range], copied: Copy, stop: StopRequest) -> None:
    """Read ranges into `copied`. Raises `click.ClickException` if stopped before their end."""
    with advancing(copied, sum(source_range.size for source_range in ranges)) as receiver:
        if not read_ranges(cluster, ranges, READ_COLUMNS, receiver, stop):
            raise click.ClickException("interrupted before the end")


def _tell_left_out(copied: Copy) -> None:
    if copied.left_out:
        click.echo(f"Left out: {copied.left_out} records without a topic in their headers; --to names one.", err=True)
