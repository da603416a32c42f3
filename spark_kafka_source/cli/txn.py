"""`pykafka txn`: list, describe and abort transactions."""

from __future__ import annotations

import time
from collections.abc import Collection

import click

from protocol.admin.resources import results_of_each
from protocol.admin.transactions import (
    OPEN_STATES,
    STATES,
    OpenTransaction,
    abort_hanging,
    abort_transaction,
    describe_transactions,
    list_transactions,
    open_transactions,
)
from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.errors import AdminFailed, BrokerError, KafkaError, UnsupportedVersion
from spark_kafka_source.cli.completion import complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers
from spark_kafka_source.cli.new_offsets import named_partitions
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import DURATION, TOPIC_PARTITIONS

_OPEN = ("topic", "partition", "start_offset", "producer_id", "producer_epoch", "coordinator_epoch", "last_timestamp")


@click.group()
def txn() -> None:
    """List, describe and abort transactions."""


@txn.command("list")
@click.option("--prefix", default="", help="Only transactional ids with this prefix.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only transactions in this state.",
)
@click.option(
    "--running-longer-than", "running_ms", type=DURATION, help="Only transactions open for longer than 1h, 15m, …"
)
@output_option
@asks_brokers
def list_command(cluster: Cluster, prefix: str, states: tuple[str, ...], running_ms: int | None, output: str) -> None:
    """List transactional ids with their coordinator, producer id and state.

    \b
    Examples:
      pykafka txn list --state Ongoing --bootstrap-server broker-1:9092
      pykafka txn list --prefix orders-etl --running-longer-than 15m --output csv
    """
    transactions = list_transactions(
        cluster.client, cluster.deadline, prefix=prefix, states=states, running_ms=running_ms
    )
    rows = [
        (transaction.transactional_id, transaction.coordinator, transaction.producer_id, transaction.state)
        for transaction in transactions
    ]
    print_rows(("transactional_id", "coordinator", "producer_id", "transaction_state"), rows, output)


@txn.command()
@click.argument("transactional_ids", metavar="TRANSACTIONAL-ID...", nargs=-1, required=True)
@output_option
@asks_brokers
def describe(cluster: Cluster, transactional_ids: tuple[str, ...], output: str) -> None:
    """Show the producer, the start time and the partitions of transactions.

    \b
    Examples:
      pykafka txn describe orders-etl-0 --bootstrap-server broker-1:9092
      pykafka txn describe orders-etl-0 orders-etl-1 --output json
    """
    rows = []
    transactions = describe_transactions(cluster.client, transactional_ids, cluster.deadline)
    for name, transaction in transactions.items():
        duration_ms = (
            None if transaction.start_ms is None else max(0, time.time_ns() // 1_000_000 - transaction.start_ms)
        )
        partitions = ",".join(f"{topic}-{partition}" for topic, partition in sorted(transaction.partitions))
        identity = (transaction.identity.producer_id, transaction.identity.producer_epoch)
        times = (transaction.timeout_ms, transaction.start_ms, duration_ms)
        rows.append((name, transaction.coordinator, *identity, transaction.state, *times, partitions or None))
    if rows:
        identity_columns = ("transactional_id", "coordinator", "producer_id", "producer_epoch", "transaction_state")
        times_columns = ("timeout_ms", "start_time_ms", "duration_ms", "partitions")
        print_rows((*identity_columns, *times_columns), rows, output)
    _complain_of(set(transactional_ids) - set(transactions))


@txn.command()
@click.argument(
    "topics", metavar="TOPIC[:0,1]...", type=TOPIC_PARTITIONS, nargs=-1, required=True, shell_complete=complete_topics
)
@output_option
@asks_brokers
def hanging(cluster: Cluster, topics: tuple[tuple[str, tuple[int, ...] | None], ...], output: str) -> None:
    """List open transactions of partitions, from their leaders.

    Consumers with isolation.level=read_committed wait at START-OFFSET. Without a TRANSACTIONAL-ID, no coordinator knows
    the transaction any more: end it with `txn abort --topic`. Others end after transaction.timeout.ms, or with `txn
    abort TRANSACTIONAL-ID`.

    \b
    Examples:
      pykafka txn hanging orders --bootstrap-server broker-1:9092
      pykafka txn hanging orders orders-upper:0,1 -o json
    """
    keys = named_partitions(cluster.client, topics, cluster.deadline)
    transactions = open_transactions(cluster.client, keys, cluster.deadline)
    owners: dict[int, str] = {}
    if transactions:
        try:
            owners = _owners(cluster, {transaction.producer_id for transaction in transactions})
        except (BrokerError, UnsupportedVersion) as error:  # not authorized, or Kafka before 3.0
            click.echo(f"Transactional ids are unknown: {error}", err=True)
    rows = [(*_row(transaction), owners.get(transaction.producer_id)) for transaction in transactions]
    print_rows((*_OPEN, "transactional_id"), rows, output)


@txn.command()
@click.argument("transactional_ids", metavar="[TRANSACTIONAL-ID]...", nargs=-1)
@click.option(
    "--topic", shell_complete=complete_topics, help="Topic of a hanging transaction that no coordinator knows."
)
@click.option("--partition", type=click.IntRange(0), help="With --topic.")
@click.option("--start-offset", type=click.IntRange(0), help="With --topic: START-OFFSET from `hanging`.")
@click.option("--execute", is_flag=True, help="Abort. Without it, nothing changes.")
@output_option
@asks_brokers
def abort(
    cluster: Cluster,
    transactional_ids: tuple[str, ...],
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    execute: bool,
    output: str,
) -> None:
    """Abort transactions and fence their producers. Without --execute, only show the transactions.

    Transactional ids are aborted one by one: each is named on standard error at once, and all rows come at the end.

    Use transactional ids for all transactions of `txn list`. --topic, --partition and --start-offset write an abort
    marker to one partition only: for a transaction that its coordinator no longer knows.

    \b
    Examples:
      pykafka txn abort orders-etl-0 orders-etl-1 --bootstrap-server broker-1:9092
      pykafka txn abort orders-etl-0 --execute
      pykafka txn abort --topic orders --partition 0 --start-offset 1200 --execute
    """
    place = (topic, partition, start_offset)
    if bool(transactional_ids) == any(option is not None for option in place):
        raise click.UsageError("Give either transactional ids, or --topic, --partition and --start-offset.")
    if transactional_ids:
        _abort_known(cluster, transactional_ids, execute, output)
    elif topic is None or partition is None or start_offset is None:
        raise click.UsageError("--topic, --partition and --start-offset belong together.")
    else:
        _abort_hanging(cluster, topic, partition, start_offset, execute, output)
    if not execute:
        click.echo("Nothing was changed; --execute aborts.", err=True)


def _abort_known(cluster: Cluster, transactional_ids: tuple[str, ...], execute: bool, output: str) -> None:
    def abort(name: str, deadline: Deadline) -> tuple[object, ...] | None:
        transaction = describe_transactions(cluster.client, [name], deadline).get(name)
        if transaction is None:
            return None
        is_open, epoch = transaction.state in OPEN_STATES, None
        if execute:
            epoch = abort_transaction(cluster.client, name, deadline).producer_epoch
            # The rows come at the end, and not at all after Ctrl-C.
            click.echo(f"{'aborted' if is_open else 'fenced'} {name}", err=True)
        return name, transaction.state, is_open, transaction.identity.producer_epoch, epoch

    errors: list[KafkaError] = []
    try:
        results = results_of_each("abort", transactional_ids, cluster.deadline, abort)
    except AdminFailed as failed:
        results, errors = failed.results, [*failed.errors.values()]
    if rows := [row for row in results.values() if row is not None]:
        columns = ("transactional_id", "transaction_state", "open", "producer_epoch", "new_producer_epoch")
        print_rows(columns, rows, output)
    _complain_of([name for name, row in results.items() if row is None], errors)


def _complain_of(missing: Collection[str], errors: Collection[KafkaError] = ()) -> None:
    texts = [*map(str, errors), *(f"Transactional id '{name}' does not exist" for name in sorted(missing))]
    if texts:
        raise click.ClickException(f"{listed(texts, separator='; ')}.")


def _abort_hanging(cluster: Cluster, topic: str, partition: int, start_offset: int, execute: bool, output: str) -> None:
    every = open_transactions(cluster.client, [(topic, partition)], cluster.deadline)
    transactions = [transaction for transaction in every if transaction.start_offset == start_offset]
    if not transactions:
        # The text of Kafka's own tool.
        raise click.ClickException(
            f"Could not find any open transactions starting at offset {start_offset} on partition {topic}-{partition}"
        )
    producer_id = transactions[0].producer_id
    if owners := _owners(cluster, {producer_id}):
        raise click.ClickException(
            f"The transaction belongs to the transactional id '{owners[producer_id]}', which its coordinator "
            "knows. Abort that id, so that all partitions of the transaction are aborted."
        )
    if execute:
        abort_hanging(cluster.client, transactions[0], cluster.deadline)
    print_rows(_OPEN, [_row(transaction) for transaction in transactions], output)


def _owners(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, str]:
    """Return the transactional ids of open transactions that a coordinator knows, by producer id."""
    transactions = list_transactions(cluster.client, cluster.deadline, producer_ids=producer_ids)
    return {
        transaction.producer_id: transaction.transactional_id
        for transaction in transactions
        if transaction.state in OPEN_STATES
    }


def _row(transaction: OpenTransaction) -> tuple[str | int | None, ...]:
    return (
        transaction.topic,
        transaction.partition,
        transaction.start_offset,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.coordinator_epoch if transaction.coordinator_epoch >= 0 else None,
        transaction.last_timestamp_ms if transaction.last_timestamp_ms >= 0 else None,
    )
