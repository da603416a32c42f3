"""`pykafka checkpoint`: what a Spark query's checkpoint says, and how it differs from the group and the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Topic
from protocol.errors import BrokerError
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from spark_kafka_source.cli.checkpoint_files import Checkpoint, CheckpointError, read_checkpoint
from spark_kafka_source.cli.completion import complete_groups
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.positions import LogEnds, list_ends
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.plan.offsets import Offsets

_SUMMARY = ("batch", "committed", "timestamp", "source", "partitions", "offsets", "unknown_starts", "skipped")
_PARTITIONS = ("batch", "committed", "source", "topic", "partition", "start_offset", "end_offset", "offsets")
_DIFFERENCES = (
    *("source", "topic", "partition", "completed", "planned", "group_offset", "log_start_offset"),
    *("log_end_offset", "lag", "finding"),
)


@click.group()
def checkpoint() -> None:
    """Inspect the checkpoint of a Spark query, and compare it with the group and the log."""


def _read(place: str) -> Checkpoint:
    try:
        return read_checkpoint(place)
    except CheckpointError as error:
        raise click.ClickException(str(error)) from error


@checkpoint.command()
@click.argument("path")
@click.option("--last", type=click.IntRange(1), default=10, show_default=True, help="Number of batches, the latest.")
@click.option("--batch", "number", type=click.IntRange(0), help="Only this batch.")
@click.option("--partitions", is_flag=True, help="A row per partition, instead of one per batch and source.")
@output_option
def inspect(path: str, last: int, number: int | None, partitions: bool, output: str) -> None:
    """Show the batches of a checkpoint: planned offsets, and whether the batch is committed. Needs no brokers.

    PATH is a folder or a URI such as s3://…. Sources of other kinds than Kafka are left out. A start offset is unknown
    if the checkpoint no longer has the batch before.

    \b
    Examples:
      pykafka checkpoint inspect /checkpoints/orders-upper
      pykafka checkpoint inspect /checkpoints/orders-upper --batch 17 --partitions -o csv
    """
    checkpoint_read = _read(path)
    if number is not None and number not in {batch.number for batch in checkpoint_read.batches}:
        raise click.ClickException(f"{path} has no batch {number}.")
    first = 0 if number is not None else max(0, len(checkpoint_read.batches) - last)
    rows: list[tuple[Any, ...]] = []
    for index, batch in enumerate(checkpoint_read.batches):
        if index < first or (number is not None and batch.number != number):
            continue
        for source, offsets in batch.sources.items():
            starts = checkpoint_read.starts(index, source)
            counts = {key: None if (at := starts[key]) is None else end - at for key, end in offsets.ends.items()}
            if partitions:
                rows += [
                    (batch.number, batch.committed, source, *key, starts[key], end, counts[key])
                    for key, end in sorted(offsets.ends.items())
                ]
            else:
                known_counts = [count for count in counts.values() if count is not None]
                rows.append(
                    (
                        *(batch.number, batch.committed, batch.timestamp_ms, source, len(counts), sum(known_counts)),
                        *(len(counts) - len(known_counts), sum(offsets.skipped.values())),
                    )
                )
    print_rows(_PARTITIONS if partitions else _SUMMARY, rows, output)


@checkpoint.command()
@click.argument("path")
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    help="Compare with this group's committed offsets, too: kafka.group.id of the query.",
)
@click.option("--all", "everything", is_flag=True, help="Include partitions without a finding.")
@output_option
@asks_brokers
def diff(cluster: Cluster, path: str, group: str | None, everything: bool, output: str) -> None:
    """Compare the last batch of a checkpoint with the logs, and with the offsets of the query's group.

    COMPLETED is where the last committed batch ends, PLANNED where the last batch ends, LAG the distance from COMPLETED
    to the log end. Exit with 1 if a restarted query would miss records or not find its position: deleted records, a log
    that is shorter, a deleted or recreated topic.

    \b
    Examples:
      pykafka checkpoint diff /checkpoints/orders-upper --group orders-etl
      pykafka checkpoint diff /checkpoints/orders-upper --all -o json
    """
    checkpoint_read = _read(path)
    last = checkpoint_read.batches[-1]
    committed: dict[TopicPartition, int] | None = None
    if group is not None:
        by_key = fetch_offsets(cluster.client, group, None, cluster.deadline, require_stable=False)
        committed = {key: offset.offset for key, offset in by_key.items()}
    rows, compared, losses = [], 0, 0
    for source, offsets in last.sources.items():
        starts = checkpoint_read.starts(len(checkpoint_read.batches) - 1, source)
        completed = dict(offsets.ends) if last.committed else starts
        comparison = _Comparison(cluster, offsets, completed, committed)
        for key in comparison.partitions:
            row, is_loss = comparison.row(key)
            compared, losses = compared + 1, losses + is_loss
            if everything or row[-1] is not None:
                rows.append((source, *row))
    print_rows(_DIFFERENCES, rows, output)
    if not rows:
        click.echo(f"No finding in {compared} partitions; --all shows them.", err=True)
    if not last.committed:
        click.echo(f"Batch {last.number} is not committed: it runs, or a restarted query repeats it.", err=True)
    if losses:
        raise click.ClickException(f"{losses} partitions cannot be resumed without loss.")


class _Comparison:
    """The last batch of a source beside the logs and the group."""

    def __init__(
        self,
        cluster: Cluster,
        offsets: Offsets,
        completed: Mapping[TopicPartition, int | None],
        committed: Mapping[TopicPartition, int] | None,
    ) -> None:
        self._offsets, self._completed, self._committed = offsets, completed, committed
        names = sorted({topic for topic, _ in offsets.ends})
        self._topics = {name: _topic(cluster, name) for name in names}
        existing = [
            (name, number) for name, topic in self._topics.items() if topic is not None for number in topic.partitions
        ]
        self._logs = (
            list_ends(cluster.client, cluster.consumer, existing, cluster.deadline) if existing else LogEnds({}, {})
        )
        self.partitions = sorted({*offsets.ends, *existing})

    def row(self, key: TopicPartition) -> tuple[tuple[Any, ...], bool]:
        """Return the columns after the source, and True if records are lost."""
        completed, planned = self._completed.get(key), self._offsets.ends.get(key)
        group = None if self._committed is None else self._committed.get(key)
        start = self._logs.starts.get(key)
        end = self._logs.ends[key].offset if key in self._logs.ends else None
        loss = self._loss(key, planned if completed is None else completed, planned, start, end)
        finding = loss or self._group_finding(key, completed, group)
        lag = None if end is None or completed is None else end - completed
        return (*key, completed, planned, group, start, end, lag, finding), loss is not None

    def _loss(
        self, key: TopicPartition, resumes: int | None, planned: int | None, start: int | None, end: int | None
    ) -> str | None:
        if planned is None or resumes is None:
            return None
        if start is None or end is None:
            return "the topic or partition does not exist"
        topic, topic_id = self._topics[key[0]], self._offsets.ids.get(key[0], NO_TOPIC_ID)
        if topic is not None and NO_TOPIC_ID not in (topic_id, topic.topic_id) and topic_id != topic.topic_id:
            return "the topic was recreated"
        if resumes < start:
            return f"{start - resumes} offsets were deleted"
        if planned > end:
            return f"the log is {planned - end} offsets shorter"
        return None

    def _group_finding(self, key: TopicPartition, completed: int | None, group: int | None) -> str | None:
        if key not in self._offsets.ends:
            return "a new partition"
        if self._committed is None or completed is None or group == completed:
            return None
        if group is None:
            return "the group has no offset"
        return f"the group is {abs(group - completed)} offsets {'ahead' if group > completed else 'behind'}"


def _topic(cluster: Cluster, name: str) -> Topic | None:
    try:
        return cluster.client.topic(name, cluster.deadline)
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise
