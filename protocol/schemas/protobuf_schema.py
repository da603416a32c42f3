"""The messages and enums of Protobuf schemas, with their names resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.schemas.decoding import UnknownName
from protocol.schemas.proto_text import EnumNode, FieldNode, FileNode, MessageNode

SCALARS = frozenset(
    [
        "double",
        "float",
        "int64",
        "uint64",
        "int32",
        "fixed64",
        "fixed32",
        "bool",
        "string",
        "bytes",
        "uint32",
        "sfixed32",
        "sfixed64",
        "sint32",
        "sint64",
    ]
)
# Kinds with the same encoding: a value of one can be read as another.
_WIRE_COMPATIBLE = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
    {"string", "bytes"},
)
_MAX_NUMBER = 2**29 - 1
# Maximum length of a full name. Nested types repeat it, and a lookup tries each of its scopes, so long names are slow.
_MAX_NAME = 1_000
_MAX_SHOWN = 80
_FIELD_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Default = int | float | bool | bytes


def wire_compatible(old: str, new: str) -> bool:
    """Return True if values of one kind of field are read as the other, by Protobuf's rules for updates of a type."""
    return old == new or any({old, new} <= kinds for kinds in _WIRE_COMPATIBLE)


@dataclass(frozen=True)
class EnumType:
    """An enum.

    `symbols`: the first name of each number, in the order of the file.
    `closed`: True if unknown numbers are unknown fields, as in proto2.
    """

    name: str
    symbols: Mapping[int, str]
    numbers: Mapping[str, int]
    closed: bool


@dataclass
class FieldType:
    """A field of a message.

    `kind`: the name of the scalar type; also "message", "group" and "enum".
    `presence`: True if a value of zero differs from an absent one.
    `default`: as declared: the number of an enum's symbol, the bytes of a string.
    `oneof`: the number of its oneof in the message.
    `packed`: True if writers pack the numbers of a repeated field.
    `checked`: True if a text that is not UTF-8 is an error.
    """

    name: str
    number: int
    kind: str
    repeated: bool = False
    required: bool = False
    presence: bool = True
    default: Default | None = None
    oneof: int | None = None
    message: MessageType | None = None
    enum: EnumType | None = None
    packed: bool = False
    checked: bool = False


@dataclass(eq=False)
class MessageType:
    """A message; fields are in the order of the file. May contain itself. `package` is that of its file."""

    name: str
    fields: list[FieldType] = field(default_factory=list)
    is_map_entry: bool = False
    package: str = ""

    @property
    def local_name(self) -> str:
        """The name without the package, but with the names of enclosing messages: `Outer.Inner`."""
        return self.name.removeprefix(f"{self.package}.") if self.package else self.name


@dataclass(frozen=True)
class ProtobufSchema:
    """A schema.

    `main`: the file of the first message, and of the messages that Confluent's indexes select.
    `others`: the other files of a descriptor set. Values may be messages of `main` and of these, but not of imported
    files.
    `messages`: all messages by full name, also those of imported files.
    """

    main: FileNode
    messages: Mapping[str, MessageType]
    others: Sequence[FileNode] = ()

    def own_messages(self) -> list[MessageType]:
        """Return the messages of the main file, in its order, without the entries of maps."""
        return [self.messages[full] for full, _ in _declared(self.main)]

    def message(self, name: str | None = None) -> MessageType:
        """Return a message of the schema's own files by its name; by default the first one of the main file.

        The name may lack the package of the main file.

        Raises `UnknownName`: the schema has no message of this name. `ConfigurationError`: the main file has no
        message.
        """
        own = self.own_messages()
        if not own:
            raise ConfigurationError("the Protobuf schema has no message")
        if name is None:
            return own[0]
        name = name.lstrip(".")
        message_names = [
            *(message.name for message in own),
            *(full for file in self.others for full, _ in _declared(file)),
        ]
        for full in (name, f"{self.main.package}.{name}"):
            if full in message_names:
                return self.messages[full]
        names = listed(message_names, CHOICES)
        raise UnknownName(f"the Protobuf schema has no message {name}; it has {names}", of="MessageName")

    def indexes(self, message: MessageType) -> list[int]:
        """Return the numbers of a message of the main file, as `at` takes them, without the entries of maps.

        Raises `ConfigurationError`: the message is in another file.
        """

        def find(scope: str, level: Sequence[MessageNode]) -> list[int] | None:
            for number, node in enumerate(node for node in level if not node.is_map_entry):
                full = f"{scope}.{node.name}" if scope else node.name
                if full == message.name:
                    return [number]
                if message.name.startswith(f"{full}.") and (below := find(full, node.messages)) is not None:
                    return [number, *below]
            return None

        path = find(self.main.package, self.main.messages)
        if path is None:
            raise ConfigurationError(f"the message {message.name} is not in the file of the schema itself")
        return path

    def at(self, indexes: Sequence[int]) -> set[str]:
        """Return the full names of messages with these Confluent message indexes, the outermost message first.

        Some of Confluent's serialisers count the entries of maps among the messages of a message, others do not.
        """
        return {name for name in (self._at(indexes, True), self._at(indexes, False)) if name is not None}

    @cached_property
    def sorted_names(self) -> list[str]:
        """The full names of the messages of the main file and of the entries of its maps, in order.

        A name's place is AWS Glue's index of the message.
        """
        return sorted(full for full, _ in _declared(self.main, with_entries=True))

    def _at(self, indexes: Sequence[int], with_entries: bool) -> str | None:
        name, level = self.main.package, self.main.messages
        for index in indexes:
            counted = [node for node in level if with_entries or not node.is_map_entry]
            if not 0 <= index < len(counted):
                return None
            node = counted[index]
            name, level = f"{name}.{node.name}" if name else node.name, node.messages
        return name


# -- names ------------------------------------------------------------------------------------


def _declared(file: FileNode, *, with_entries: bool = False) -> Iterator[tuple[str, MessageNode]]:
    """Yield all messages of a file with their full names; the entries of maps only if asked to."""

    def below(scope: str, node: MessageNode) -> Iterator[tuple[str, MessageNode]]:
        full = f"{scope}.{node.name}" if scope else node.name
        if with_entries or not node.is_map_entry:
            yield full, node
        for nested in node.messages:
            yield from below(full, nested)

    for message in file.messages:
        yield from below(file.package, message)


def resolve_files(files: list[FileNode]) -> dict[str, MessageType]:
    """Return the messages of these files by full name. Raises `ConfigurationError`."""
    messages: dict[str, MessageType] = {}
    nodes: list[tuple[str, MessageNode, FileNode]] = []
    enums: dict[str, EnumType] = {}

    def add_enum(scope: str, node: EnumNode, file: FileNode) -> None:
        full = _full_name(scope, node.name)
        enums.setdefault(full, _enum(full, node, file))

    def add(scope: str, node: MessageNode, file: FileNode) -> None:
        full = _full_name(scope, node.name)
        if full in messages:
            return
        messages[full] = MessageType(full, is_map_entry=node.is_map_entry, package=file.package)
        nodes.append((full, node, file))
        for enum in node.enums:
            add_enum(full, enum, file)
        for nested in node.messages:
            add(full, nested, file)

    for file in files:
        for enum in file.enums:
            add_enum(file.package, enum, file)
        for node in file.messages:
            add(file.package, node, file)
    for full, node, file in nodes:
        messages[full].fields = [_field(full, field_node, node, file, messages, enums) for field_node in node.fields]
        numbers = [field.number for field in messages[full].fields]
        names = [field.name for field in messages[full].fields]
        for values, subject in ((numbers, "number"), (names, "name")):
            if len(set(values)) < len(values):
                raise ConfigurationError(f"the message {full} has two fields with the same {subject}")
    return messages


def _full_name(scope: str, name: str) -> str:
    full = f"{scope}.{name}" if scope else name
    if len(full) > _MAX_NAME:
        raise ConfigurationError(
            f"the Protobuf schema has a name of more than {_MAX_NAME} characters: {full[:_MAX_SHOWN]}…"
        )
    return full


def _enum(full: str, node: EnumNode, file: FileNode) -> EnumType:
    symbols: dict[int, str] = {}
    for name, number in node.values:
        symbols.setdefault(number, name)
    if not symbols:
        raise ConfigurationError(f"the enum {full} has no values")
    return EnumType(node.name, symbols, dict(node.values), _features(file, node)["enum_type"] == "CLOSED")


def _features(file: FileNode, node: EnumNode | FieldNode) -> Mapping[str, str]:
    """Return the features of a node: those that proto2 and proto3 fix, or edition 2023's with the overrides."""
    overrides = {**file.features, **node.features} if file.syntax == "editions" else {}
    return {**_FEATURES[file.syntax], **overrides}


# Source: "Feature Settings for Editions", protobuf.dev: proto2 and proto3 are fixed sets of features.
_FEATURES = {
    "proto2": {"field_presence": "EXPLICIT", "repeated_field_encoding": "EXPANDED", "utf8_validation": "NONE",
               "enum_type": "CLOSED", "message_encoding": "LENGTH_PREFIXED"},
    "proto3": {"field_presence": "IMPLICIT", "repeated_field_encoding": "PACKED", "utf8_validation": "VERIFY",
               "enum_type": "OPEN", "message_encoding": "LENGTH_PREFIXED"},
    "editions": {"field_presence": "EXPLICIT", "repeated_field_encoding": "PACKED", "utf8_validation": "VERIFY",
                 "enum_type": "OPEN", "message_encoding": "LENGTH_PREFIXED"},
}  # fmt: skip


def _field(
    scope: str,
    node: FieldNode,
    owner: MessageNode,
    file: FileNode,
    messages: Mapping[str, MessageType],
    enums: Mapping[str, EnumType],
) -> FieldType:
    if _FIELD_NAME.fullmatch(node.name) is None or len(node.name) > _MAX_NAME:
        raise ConfigurationError(f"the message {scope} has a field with an invalid name: {node.name[:_MAX_SHOWN]!r}")
    path = f"{scope}.{node.name}"
    if not 1 <= node.number <= _MAX_NUMBER:
        raise ConfigurationError(f"the field {path} has the number {node.number}, which is not in 1 to {_MAX_NUMBER}")
    features = _features(file, node)
    made = FieldType(node.name, node.number, node.type, repeated=node.label == "repeated", oneof=node.oneof)
    if node.type not in SCALARS:
        _set_type(made, scope, node, messages, enums)
    if made.kind == "message" and features["message_encoding"] == "DELIMITED":
        made.kind = "message" if made.message is not None and made.message.is_map_entry else "group"
    made.required = node.label == "required" or features["field_presence"] == "LEGACY_REQUIRED"
    explicit = features["field_presence"] != "IMPLICIT" or (file.syntax == "proto3" and node.label == "optional")
    made.presence = not made.repeated and (explicit or made.message is not None or made.oneof is not None)
    made.packed = _is_packed(made, node, features)
    made.checked = features["utf8_validation"] == "VERIFY"
    if node.default is not None:
        made.default = _default(made, node.default, path)
    return made


def _is_packed(made: FieldType, node: FieldNode, features: Mapping[str, str]) -> bool:
    numeric = made.kind not in ("string", "bytes", "message", "group")
    packs = features["repeated_field_encoding"] == "PACKED" if node.packed is None else node.packed
    return made.repeated and numeric and packs


def _set_type(
    made: FieldType, scope: str, node: FieldNode, messages: Mapping[str, MessageType], enums: Mapping[str, EnumType]
) -> None:
    """Find a type by its name: in the message itself, in those around it, then in the packages around them."""
    candidates = [node.type[1:]]
    if len(node.type) > _MAX_NAME:
        candidates = []
    elif not node.type.startswith("."):
        parts = scope.split(".")
        candidates = [".".join((*parts[:count], node.type)) for count in range(len(parts), -1, -1)]
    for full in candidates:
        if full in messages:
            made.kind, made.message = "group" if node.is_group else "message", messages[full]
            return
        if full in enums:
            made.kind, made.enum = "enum", enums[full]
            return
    raise ConfigurationError(
        f"the field {scope}.{node.name} has the type {node.type[:_MAX_SHOWN]}, which neither the schema "
        "nor its imports have"
    )


def _default(made: FieldType, raw: bytes, path: str) -> Default:
    text = raw.decode("utf-8", "replace")
    try:
        if made.enum is not None:
            return made.enum.numbers[text]
        if made.kind in ("float", "double"):
            return float(text.lower().rstrip("f") if text.lower().strip("+-") not in ("inf", "nan") else text)
        if made.kind == "bool":
            return {"true": True, "false": False}[text]
        if made.kind in ("string", "bytes"):
            return raw
        digits = text.lstrip("-")
        number = int(digits, 8) if digits.startswith("0") and digits.isdigit() else int(digits, 0)
        number = -number if text.startswith("-") else number
        bits = 64 if made.kind.endswith("64") else 32
        lowest = 0 if made.kind.startswith(("uint", "fixed")) else -(2 ** (bits - 1))
        if not lowest <= number < lowest + 2**bits:
            raise ValueError
        return number
    except (KeyError, ValueError):
        raise ConfigurationError(f"the field {path} has a default that is no {made.kind}: {text!r}") from None
