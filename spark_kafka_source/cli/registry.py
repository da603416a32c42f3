"""`pykafka registry`: list subjects, show schemas, and check a new version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import click

from protocol.errors import RegistryFailed
from protocol.schemas.registry import NOT_FOUND, RegisteredSchema, SchemaReference, SchemaRegistry
from spark_kafka_source.cli.connection import asks_registry
from spark_kafka_source.cli.rows import output_option, print_rows
from spark_kafka_source.cli.values import Parsed

_KINDS = ("AVRO", "PROTOBUF", "JSON")
_KIND_OF_SUFFIX = {".avsc": "AVRO", ".proto": "PROTOBUF"}


def _reference(text: str) -> SchemaReference:
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not (name and subject and version.isdecimal()):
        raise ValueError("not NAME=SUBJECT:VERSION")
    return SchemaReference(name, subject, int(version))


_REFERENCE = Parsed("reference", _reference)


@click.group()
def registry() -> None:
    """List the subjects of a schema registry, show schemas, check a new version."""


@registry.command()
@click.argument("names", metavar="[SUBJECT]...", nargs=-1)
@click.option(
    "--versions", "-a", "all_versions", is_flag=True, help="A row for each version instead of the latest one."
)
@output_option
@asks_registry
def subjects(registry: SchemaRegistry, names: tuple[str, ...], all_versions: bool, output: str) -> None:
    """List the subjects, by default all of them, with version, id and type of the latest schema.

    \b
    Examples:
      pykafka registry subjects --schema-registry http://registry:8081
      pykafka registry subjects orders-avro-value --versions -o csv
    """
    rows = []
    for name in names or sorted(registry.subjects()):
        for version in registry.versions(name) if all_versions else (None,):
            schema = registry.version(name, version)
            references = ",".join(f"{reference.subject}:{reference.version}" for reference in schema.references) or None
            rows.append((name, schema.version, schema.schema_id, schema.kind, references))
    print_rows(("subject", "version", "id", "type", "references"), rows, output)


@registry.command()
@click.argument("subject", required=False)
@click.option("--version", type=click.IntRange(1), help="A version of the subject.  [default: the latest one]")
@click.option("--id", "schema_id", type=click.IntRange(0), help="The schema with this id, instead of a subject's.")
@output_option
@asks_registry
def schema(
    registry: SchemaRegistry, subject: str | None, version: int | None, schema_id: int | None, output: str
) -> None:
    """Show a schema: its text alone, or with -o json, yaml or csv also subject, version, id and type.

    \b
    Examples:
      pykafka registry schema orders-avro-value
      pykafka registry schema --id 1 -o json
    """
    if (subject is None) == (schema_id is None) or (schema_id is not None and version is not None):
        raise click.UsageError("Give either a subject, and --version if needed, or --id.")
    registered = registry.version(subject, version) if subject is not None else registry.by_id(schema_id or 0)
    if output == "table":
        click.echo(_readable(registered.text))
        return
    row = (registered.subject, registered.version, registered.schema_id, registered.kind, registered.text)
    print_rows(("subject", "version", "id", "type", "schema"), [row], output)


@registry.command()
@click.argument("subject")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option(
    "--type",
    "kind",
    type=click.Choice(_KINDS, case_sensitive=False),
    help="The type of the schema.  [default: by the suffix .avsc or .proto, else that of the subject, else AVRO]",
)
@click.option(
    "--reference",
    "references",
    type=_REFERENCE,
    metavar="NAME=SUBJECT:VERSION",
    multiple=True,
    help="Another schema that it uses; repeatable.",
)
@output_option
@asks_registry
def check(
    registry: SchemaRegistry,
    subject: str,
    file: IO[str],
    kind: str | None,
    references: tuple[SchemaReference, ...],
    output: str,
) -> None:
    """Check if the schema in FILE may be the next version of a subject; nothing is registered.

    `version` and `id` are those of the schema if the subject has it already. The exit code is 1 if the schema is not
    compatible.

    \b
    Examples:
      pykafka registry check orders-avro-value order.avsc
      pykafka registry check orders-avro-value order.avsc -o json
    """
    kind = kind or _KIND_OF_SUFFIX.get(Path(file.name).suffix)
    exists = subject in registry.subjects()
    if kind is None:
        kind = registry.version(subject).kind if exists else "AVRO"
    schema = RegisteredSchema(file.read(), kind, references=references)
    same = _registered(registry, subject, schema) if exists else None
    compatible, reasons = (True, []) if same is not None else registry.compatible(subject, schema)
    row = (
        *(subject, compatible, None if same is None else same.version, None if same is None else same.schema_id),
        "; ".join(reasons) or None,
    )
    print_rows(("subject", "compatible", "version", "id", "reason"), [row], output)
    if not compatible:
        click.get_current_context().exit(1)


def _registered(registry: SchemaRegistry, subject: str, schema: RegisteredSchema) -> RegisteredSchema | None:
    try:
        return registry.lookup(subject, schema)
    except RegistryFailed as error:
        if error.context.get("status") != NOT_FOUND:
            raise
        return None


def _readable(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
