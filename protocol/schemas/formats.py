"""The formats of keys and values, and the languages of their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa

    from protocol.schemas.decoding import RecordNames, SchemaText, ValueDecoder, WriterNames
    from protocol.schemas.encoding import ColumnWriter

# A format has its name here and its entry in `FORMATS`; a new language also its branch in `language_of`.
Format = Literal[
    "binary",
    "string",
    "json",
    "confluent-json",
    "glue-json",
    "avro",
    "confluent-avro",
    "glue-avro",
    "protobuf",
    "confluent-protobuf",
    "glue-protobuf",
]
RegistryKind = Literal["confluent", "glue"]
SubjectNameStrategy = Literal["TopicRecordNameStrategy", "RecordNameStrategy"]


@dataclass(frozen=True)
class FormatSpec:
    """A format.

    `language`: the type of its schemas, as a registry names it; None: it has no schema.
    `registry`: the kind of registry; each value begins with its schema's id there. None: all values have one schema.
    `written`: True if a sink can write it.
    `written_without_schema`: True if a sink can write it without a schema.
    """

    language: str | None = None
    registry: RegistryKind | None = None
    written: bool = True
    written_without_schema: bool = False

    @property
    def registered(self) -> bool:
        """True if each value has the id of its schema in a registry."""
        return self.registry is not None


FORMATS: Mapping[str, FormatSpec] = {
    "binary": FormatSpec(),
    "string": FormatSpec(written=False),
    "json": FormatSpec("JSON", written_without_schema=True),
    "confluent-json": FormatSpec("JSON", "confluent"),
    "glue-json": FormatSpec("JSON", "glue"),
    "avro": FormatSpec("AVRO"),
    "confluent-avro": FormatSpec("AVRO", "confluent"),
    "glue-avro": FormatSpec("AVRO", "glue"),
    "protobuf": FormatSpec("PROTOBUF"),
    "confluent-protobuf": FormatSpec("PROTOBUF", "confluent"),
    "glue-protobuf": FormatSpec("PROTOBUF", "glue"),
}
# The property that names the registry of a kind.
REGISTRY_SETTINGS: Mapping[RegistryKind, str] = {
    "confluent": "schema.registry.url",
    "glue": "schema.registry.glue.region",
}
WRITTEN = tuple(name for name, spec in FORMATS.items() if spec.written)


def registered_format(language: str, registry: RegistryKind | None) -> Format | None:
    """Return the registered format of a language and a kind of registry; None: there is none."""
    names = [name for name, spec in FORMATS.items() if spec.registry == registry and spec.language == language]
    return cast("Format", names[0]) if names else None


class TypeOptionNames(NamedTuple):
    """The names of the options about types of values, as the user writes them."""

    types: str
    subject: str
    strategy: str
    schema: str
    union: str = ""


@dataclass(frozen=True)
class ValueTypes:
    """The options about several types of values.

    `names`: the full names of the types.
    `subject`: the subject of one type, or the subjects of several.
    `strategy`: how Confluent's serialisers have named the subjects of `names`.
    `in_union`: True if the types are the records of one Avro union.
    """

    names: tuple[str, ...] = ()
    subject: str | tuple[str, ...] | None = None
    strategy: SubjectNameStrategy = "TopicRecordNameStrategy"
    in_union: bool = False

    @property
    def one_subject(self) -> str | None:
        """The subject, if it is one."""
        return self.subject if isinstance(self.subject, str) else None

    def subjects(self, topic: str) -> tuple[str, ...]:
        """Return the subjects of several types; empty: there is one."""
        if isinstance(self.subject, tuple):
            return self.subject
        prefix = f"{topic}-" if self.strategy == "TopicRecordNameStrategy" else ""
        return tuple(prefix + name for name in self.names)

    def contradictions(
        self, options: TypeOptionNames, text: str | None, why_no_topic: str = ""
    ) -> Iterator[tuple[str, str]]:
        """Yield the option to change and the problem, of options that contradict each other.

        `text`: the schema of all values, if one is given.
        `why_no_topic`: why subjects cannot begin with the name of a topic; empty if they can.
        """
        types, subject, strategy, schema, union = options
        names = self.subject if isinstance(self.subject, tuple) else self.names
        several = f"{types} or {subject} names several"
        if self.names and self.subject is not None:
            yield types, f"{types} and {subject} both say which types values have; leave out one of them"
        if not all(names) or len(set(names)) < len(names):
            option = types if self.names else subject
            yield option, f"{option}: a name is empty, or there twice"
        if self.names and self.strategy == "TopicRecordNameStrategy" and why_no_topic:
            remedy = f"name the subjects in {subject}, or set {strategy} to RecordNameStrategy"
            yield types, f"{types} has subjects by topic, and {why_no_topic}: {remedy}"
        if names and text is not None:
            yield schema, f"{schema} is one schema, but {several} types: leave it out"
        if names and self.in_union:
            yield union, f"{union} reads the types of one schema, but {several}: leave out one of them"


def parse_subject(text: str | None) -> str | tuple[str, ...] | None:
    """Return the subject of one type, or of `a, b` the subjects of several."""
    subjects = tuple(name.strip() for name in (text or "").split(","))
    return subjects if len(subjects) > 1 else text


def default_subject(registry: RegistryKind | None, topic: str, part: str) -> str:
    """Return the subject, or Glue's schema name, that serialisers take by default for keys or values of a topic."""
    return topic if registry == "glue" else f"{topic}-{part}"


class Language(Protocol):
    """A language of schemas: makes decoders, and encoders for a sink."""

    def decoder(self, reader: SchemaText) -> ValueDecoder:
        """Return a decoder of values that were written with the reader's schema. Raises `ConfigurationError`."""

    def resolver(
        self, text: str, references: Mapping[str, str], reader: SchemaText, message: bytes | None
    ) -> ValueDecoder:
        """Return a decoder that reads values of a registered writer's schema as the reader's schema.

        `text`, `references`: the writer's schema, and the schemas that it uses.
        `message`: the bytes behind the schema's id or GUID in a header; None: the id of the schema, and those bytes,
        are in the values.
        Raises `ConfigurationError`: the writer's schema is invalid, or the reader's cannot read it.
        """

    def names(self, reader: SchemaText) -> RecordNames:
        """Return the names of the record of a schema. Raises as `decoder`."""

    def writer_names(self, text: str, references: Mapping[str, str], message: bytes | None) -> WriterNames:
        """Return what names the records of a registered schema; the parameters are those of `resolver`."""

    def writer(
        self, text: str, references: Mapping[str, str], message: str | None, kind: pa.DataType
    ) -> tuple[ColumnWriter, bytes]:
        """Return what encodes a column of an Arrow type, and the bytes between a schema's id and the value.

        `text`, `references`: the schema, and the schemas that it uses.
        `message`: the message of a Protobuf schema.
        Raises `ConfigurationError`: the schema is invalid, or cannot take the column; the message has the field's path.
        """

    def text_of(self, kind: pa.DataType, name: str = "") -> str:
        """Return a schema for a column. `name`: its full name. Raises `ConfigurationError`."""


def language_of(format: str) -> Language:
    """Return the language of a format that has one."""
    language: Language
    if FORMATS[format].language == "PROTOBUF":
        from protocol.schemas.protobuf_language import ProtobufLanguage

        language = ProtobufLanguage(glue=FORMATS[format].registry == "glue")
    elif FORMATS[format].language == "JSON":
        from protocol.schemas.json_language import JsonLanguage

        language = JsonLanguage()
    else:
        from protocol.schemas.avro_language import AvroLanguage

        language = AvroLanguage()
    return language
