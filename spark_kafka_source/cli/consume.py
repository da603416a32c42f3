"""`pykafka consume`: print records of a topic, or write them to a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.kafka_terms import TopicPartition
from protocol.records.decode import ALL_COLUMNS
from protocol.schemas.formats import FORMATS, SubjectNameStrategy, TypeOptionNames, ValueTypes, parse_subject
from spark_kafka_source.cli.completion import complete_groups, complete_topics
from spark_kafka_source.cli.connection import Cluster, asks_brokers, open_registry, schema_registry_option
from spark_kafka_source.cli.positions import FROM_EARLIEST, FROM_LATEST, Span, parse_span
from spark_kafka_source.cli.progress import advancing
from spark_kafka_source.cli.record_files import SUFFIXES, RecordFile
from spark_kafka_source.cli.record_filters import RecordCondition, RecordFilter
from spark_kafka_source.cli.record_sources import (
    Receiver,
    follow,
    ranges_between,
    read_as_member,
    read_ranges,
    span_positions,
)
from spark_kafka_source.cli.record_text import RecordFormat, json_format, text_format
from spark_kafka_source.cli.stop_signals import stop_request
from spark_kafka_source.cli.values import NUMBERS, Parsed
from spark_kafka_source.options.selection import fields

if TYPE_CHECKING:
    from protocol.schemas.formats import Format
    from protocol.schemas.registry import SchemaRegistry
    from protocol.schemas.values import ColumnDecoder
    from spark_kafka_source.cli.decoded_records import RecordDecoder

_JSON = "json"
_FORMATS = tuple(name for name, spec in FORMATS.items() if spec.language is not None)
_TYPE_OPTIONS = TypeOptionNames(
    "--value-types", "--subject", "--subject-name-strategy", "--value-schema", "--union-types"
)
# Control characters, also of two bytes in UTF-8, become question marks on a terminal; \t, \n and \r stay.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")


_POSITION_OR_JSON = Parsed("position", lambda text: text if text == _JSON else parse_span(text))
_FORMAT = Parsed("format", text_format)


def _headers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    pairs = [value.partition("=") for value in values]
    return tuple((name, value.encode() if equals else None) for name, equals, value in pairs)


class _Output:
    """Filters, counts and writes records; the receiver of `consume`."""

    def __init__(self, chosen: RecordFilter, limit: int | None) -> None:
        self._filter = chosen
        self._left = limit
        self.count = 0
        self.file: RecordFile | None = None
        self.format: RecordFormat | None = None
        self.condition: RecordCondition | None = None
        self.decoder: RecordDecoder | None = None

    @property
    def done(self) -> bool:
        return self._left == 0

    @property
    def columns(self) -> frozenset[str]:
        """The columns to read."""
        if self.format is None:
            return frozenset(ALL_COLUMNS)
        decoded = frozenset[str]() if self.decoder is None else self.decoder.columns
        judged = frozenset[str]() if self.condition is None else self.condition.columns
        return self.format.columns | self._filter.columns | decoded | judged | {"offset"}

    def take(self, key: TopicPartition, batch: pa.RecordBatch) -> int | None:
        if self.condition is not None:
            batch = self.condition.apply(key, batch)
        if self.decoder is not None and batch.num_rows:
            as_text = self.format is not None or bool(self._filter.columns & {"key", "value"})
            batch = self.decoder.decode(batch, as_text=as_text)
        if not batch.num_rows:
            return None
        chosen, unread = self._filter.apply(batch), None
        if self._left is not None and chosen.num_rows >= self._left:
            chosen = chosen.slice(0, self._left)
            last = chosen.column("offset")[-1].as_py()
            unread = last + 1 if last < batch.column("offset")[-1].as_py() else None
        if chosen.num_rows:
            if self.decoder is not None:
                self.decoder.report(key, chosen)
            self._write(key, chosen)
        self.count += chosen.num_rows
        if self._left is not None:
            self._left -= chosen.num_rows
        return unread

    def _write(self, key: TopicPartition, batch: pa.RecordBatch) -> None:
        if self.file is not None:
            self.file.write(key[1], batch)
        elif self.format is not None:
            rendered = self.format.render(*key, batch)
            click.echo(_CONTROL.sub(b"?", rendered) if sys.stdout.isatty() else rendered, nl=False)


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-o",
    "--offset",
    "offsets",
    type=_POSITION_OR_JSON,
    multiple=True,
    metavar="POSITION",
    help="earliest, latest, an offset, +N (after the earliest), -N (before the latest), @2026-01-31T06:00Z, @-1h, or "
    "FROM:TO of these.  [default: latest; with --to or --exit-at-end: earliest]",
)
@click.option("-p", "--partition", "partitions", type=NUMBERS, help="Only these partitions: 0 or 0,3.")
@click.option(
    "-g", "--group", shell_complete=complete_groups, help="Read as a member of this group, and commit offsets."
)
@click.option("-n", "--count", "limit", type=click.IntRange(1), help="Stop after this number of records.")
@click.option(
    "-f",
    "--format",
    "text",
    type=_FORMAT,
    metavar="FORMAT",
    help=r"%t topic, %p partition, %o offset, %T timestamp, %k key, %v value, %h headers, %K and %S length of key and "
    r"value, \n, \t, \xHH.  [default: %v\n]",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="Print a JSON object per line; also: -o json.")
@click.option("--decode", is_flag=True, help="Decode values by the schema registry, and print them as JSON.")
@click.option("--decode-key", is_flag=True, help="Decode keys, too.")
@click.option(
    "--subject",
    metavar="NAME[,NAME]",
    help="The subject with the schema of values, or those of several types of values.  "
    "[default: TOPIC-value; AWS Glue: TOPIC]",
)
@click.option(
    "--value-types",
    type=Parsed("names", fields),
    metavar="NAME,NAME",
    help="The types of values in a topic with several, by their full names.",
)
@click.option(
    "--subject-name-strategy",
    "strategy",
    type=click.Choice(get_args(SubjectNameStrategy)),
    default="TopicRecordNameStrategy",
    show_default=True,
    metavar="NAME",
    help="How the subjects of these types are named: TopicRecordNameStrategy or RecordNameStrategy.",
)
@click.option("--union-types", "in_union", is_flag=True, help="The records of an Avro union are several types, too.")
@click.option(
    "--on-unknown-type",
    type=click.Choice(("fail", "null", "skip")),
    default="fail",
    show_default=True,
    help="A record of another type does not decode (fail), is null, or is left out (skip).",
)
@click.option(
    "--value-schema",
    "schema",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    metavar="FILE",
    help="With --decode: the schema to read values with: of Avro, JSON Schema, a .proto file or a file of protoc "
    "--descriptor_set_out. Formats without ids of schemas need no registry.",
)
@click.option(
    "--value-format",
    type=click.Choice(_FORMATS),
    help="The format of these values: avro, protobuf, json, or one with ids of schemas, such as glue-avro.",
)
@click.option("--value-message", metavar="NAME", help="The message of a Protobuf schema.  [default: its first one]")
@schema_registry_option
@click.option("--key", help="Only records with this key.")
@click.option("--grep", "pattern", metavar="REGEX", help="Only records whose value contains a match.")
@click.option(
    "--filter",
    "condition",
    metavar="SQL",
    help="Only records for which this condition of Spark's SQL is true: docs/filters.md. Needs sqlglot.",
)
@click.option(
    "--header",
    "headers",
    metavar="NAME[=VALUE]",
    multiple=True,
    callback=_headers,
    help="Only records with this header; repeatable, all must be there.",
)
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Write to a file in the format of its suffix: {' or '.join(SUFFIXES)}.",
)
@click.option(
    "--follow/--exit-at-end",
    " /-e",
    "follows",
    default=None,
    help="Wait for new records, or stop at the present log ends.  [default: --follow; with --to: --exit-at-end]",
)
@asks_brokers
def consume(
    cluster: Cluster,
    topic: str,
    offsets: tuple[Span | str, ...],
    partitions: tuple[int, ...] | None,
    group: str | None,
    limit: int | None,
    text: RecordFormat | None,
    as_json: bool,
    decode: bool,
    decode_key: bool,
    subject: str | None,
    value_types: tuple[str, ...] | None,
    strategy: SubjectNameStrategy,
    in_union: bool,
    on_unknown_type: str,
    schema: str | None,
    value_format: Format | None,
    value_message: str | None,
    schema_registry: str | None,
    key: str | None,
    pattern: str | None,
    condition: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    path: Path | None,
    follows: bool | None,
) -> None:
    """Print the records of a topic until Ctrl-C, or write them to a Parquet or Arrow file.

    Without a group no offsets are committed. -n counts records of all partitions; +N and -N in a position count
    offsets of each partition. --timeout limits the time until the first request for records.

    With --decode, values become the latest version of their subject, or of --value-schema: JSON in lines, objects with
    -o json, columns in a file; --key and --grep look at the JSON. A value that does not decode is null, and the exit
    code 1. Values of several types are objects with a field for each type, and -o json and files have `value_type`.

    \b
    Examples:
      pykafka consume orders -o -10 -f '%p:%o %k %v\\n'
      pykafka consume orders -o @-1h:latest --grep refused -o json
      pykafka consume orders -e --filter "headers['source'] = 'web' AND partition < 8"
      pykafka consume orders -p 0,1 --to orders.parquet
      pykafka consume orders-avro -e --decode --schema-registry http://registry:8081
      pykafka consume shop-events -e --decode --value-types com.shop.Order,com.shop.Refund -o json
      pykafka consume orders-proto -e --decode --value-schema order.proto --value-format protobuf
    """
    spans = [offset for offset in offsets if isinstance(offset, Span)]
    as_json = as_json or len(spans) < len(offsets)
    _check_usage(spans, path, text, partitions, group, as_json=as_json)
    output = _Output(_record_filter(key, pattern, headers), limit)
    output.condition = None if condition is None else _record_condition(condition)
    follows = (path is None) if follows is None else follows
    span = spans[0] if spans else Span(FROM_LATEST if follows else FROM_EARLIEST)
    types = ValueTypes(value_types or (), parse_subject(subject), strategy, in_union)
    fixed = _FixedSchema(schema, value_format, value_message)
    decodes = {"decode": decode, "decode_key": decode_key}
    output.decoder = _decoder(cluster, topic, schema_registry, types, on_unknown_type, fixed, **decodes)
    if path is None:
        decoded = () if output.decoder is None else output.decoder.types
        output.format = json_format(decoded) if as_json else text or text_format(r"%v\n")
    if group is not None:
        properties = _group_properties(cluster, group, span, is_named=bool(spans))
        _consume_as_member(cluster, topic, properties, output, path, follows=follows)
    else:
        _consume_partitions(cluster, topic, partitions, span, output, path, follows=follows)
    if path is not None:
        click.echo(f"{output.count} records written to {path}", err=True)
    if output.decoder is not None and output.decoder.invalid:
        raise click.ClickException(f"{output.decoder.invalid} records did not decode")


def _record_filter(key: str | None, pattern: str | None, headers: tuple[tuple[str, bytes | None], ...]) -> RecordFilter:
    try:
        return RecordFilter(key.encode() if key is not None else None, pattern, headers)
    except ValueError as error:
        raise click.UsageError(f"--grep: {error}") from error


def _record_condition(condition: str) -> RecordCondition:
    try:
        return RecordCondition(condition)
    except ConfigurationError as error:
        raise click.UsageError(f"--filter: {error}") from error


def _consume_as_member(
    cluster: Cluster, topic: str, properties: Mapping[str, object], output: _Output, path: Path | None, *, follows: bool
) -> None:
    with stop_request(prints=path is None) as stop, ExitStack() as opened:
        receiver = _open(opened, output, path, topic, None)
        # Without the file, its records would be lost for the group.
        complete = None if path is None else opened.close
        read_as_member(
            *(cluster, properties, topic, output.columns, receiver, stop), exit_at_end=not follows, complete=complete
        )


def _consume_partitions(
    cluster: Cluster,
    topic: str,
    partitions: tuple[int, ...] | None,
    span: Span,
    output: _Output,
    path: Path | None,
    *,
    follows: bool,
) -> None:
    with stop_request(prints=path is None) as stop, ExitStack() as opened:
        starts, ends = span_positions(cluster, topic, partitions, span)
        if follows and span.end is None:
            follow(cluster, starts, output.columns, _open(opened, output, path, topic, None), stop)
            return
        ranges = ranges_between(starts, ends)
        receiver = _open(opened, output, path, topic, sum(source_range.size for source_range in ranges))
        if not read_ranges(cluster, ranges, output.columns, receiver, stop) and path is not None:
            raise click.ClickException(f"interrupted; {path} was not written")


@dataclass(frozen=True)
class _FixedSchema:
    """The options for values that all have one schema.

    Raises `click.UsageError`: one of them is missing.
    """

    path: str | None
    format: Format | None
    message: str | None

    def __post_init__(self) -> None:
        if (self.path is None) != (self.format is None):
            raise click.UsageError("--value-schema and --value-format need each other.")
        if self.message is not None and (self.format is None or FORMATS[self.format].language != "PROTOBUF"):
            raise click.UsageError("--value-message needs --value-format protobuf.")

    @property
    def needs_registry(self) -> bool:
        """True if values have the ids of the schemas that they were written with."""
        return self.format is not None and FORMATS[self.format].registered

    def decoder(self, registry: SchemaRegistry | None, *, in_union: bool) -> ColumnDecoder | None:
        """Return what decodes values, if there is a schema. Raises `ConfigurationError`."""
        if self.path is None or self.format is None:
            return None
        from spark_kafka_source.cli.decoded_records import fixed_decoder
        from spark_kafka_source.options.selection import schema_text

        try:
            text = schema_text(f"file:{self.path}")
            return fixed_decoder(self.format, text, self.message, registry, in_union=in_union)
        except (ConfigurationError, ValueError) as error:
            raise click.UsageError(f"--value-schema: {error}") from error


def _decoder(
    cluster: Cluster,
    topic: str,
    url: str | None,
    types: ValueTypes,
    on_unknown_type: str,
    fixed: _FixedSchema,
    *,
    decode: bool,
    decode_key: bool,
) -> RecordDecoder | None:
    if not decode and not decode_key:
        if types != ValueTypes() or on_unknown_type != "fail" or url is not None or fixed.path is not None:
            raise click.UsageError("The options of schemas and types need --decode.")
        return None
    for _, problem in types.contradictions(_TYPE_OPTIONS, fixed.path):
        raise click.UsageError(f"{problem}.")
    if types.one_subject is not None and fixed.path is not None:
        raise click.UsageError("--subject has no effect with --value-schema; give one of them.")
    # Only these options import the decoders.
    from spark_kafka_source.cli.decoded_records import RecordDecoder, registered_decoder

    needs_registry = fixed.path is None or fixed.needs_registry or decode_key
    registry = open_registry(cluster.registry) if needs_registry else None
    decoders: dict[str, ColumnDecoder] = {}
    if (by_file := fixed.decoder(registry, in_union=types.in_union)) is not None:
        decoders["value"] = by_file
    if registry is not None and by_file is None:
        decoders["value"] = registered_decoder(registry, topic, "value", types)
    if registry is not None and decode_key:
        decoders["key"] = registered_decoder(registry, topic, "key", ValueTypes())
    if on_unknown_type != "fail" and not decoders["value"].schema.types:
        raise click.UsageError("--on-unknown-type needs several types: --value-types, --subject A,B or --union-types.")
    return RecordDecoder(decoders, on_unknown_type)


def _check_usage(
    spans: list[Span],
    path: Path | None,
    text: RecordFormat | None,
    partitions: tuple[int, ...] | None,
    group: str | None,
    *,
    as_json: bool,
) -> None:
    if len(spans) > 1:
        raise click.UsageError("Give one position; FROM:TO is a range.")
    if (path is not None) + (text is not None) + as_json > 1:
        raise click.UsageError("Give only one of --to, --format and --json.")
    if path is not None and path.suffix not in SUFFIXES:
        raise click.UsageError(f"--to: the suffix of {path} is not one of {', '.join(SUFFIXES)}.")
    if group is None:
        return
    if partitions is not None:
        raise click.UsageError("--partition cannot be combined with --group: the group assigns partitions.")
    if spans and spans[0] not in (Span(FROM_EARLIEST), Span(FROM_LATEST)):
        raise click.UsageError("With --group, a position is earliest or latest, where the group has no offset.")


def _group_properties(cluster: Cluster, group: str, span: Span, *, is_named: bool) -> Mapping[str, object]:
    own = {"group.id": group}
    if is_named or "auto.offset.reset" not in cluster.properties:
        own["auto.offset.reset"] = span.start.kind
    return {**cluster.properties, **own}


def _open(opened: ExitStack, output: _Output, path: Path | None, topic: str, total: int | None) -> Receiver:
    """Open the file and, on a terminal, its progress bar; return the receiver of records."""
    if path is None:
        return output
    output.file = opened.enter_context(RecordFile(path, topic, {} if output.decoder is None else output.decoder.types))
    return opened.enter_context(advancing(output, total, path.name))
