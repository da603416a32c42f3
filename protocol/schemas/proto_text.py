"""Parse `.proto` files: the parts of the Protobuf language that say how messages are encoded.

Custom options, services and extensions are skipped. `protobuf_schema` resolves the names.

Source: the Protobuf language specifications of proto2, proto3 and editions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from protocol.errors import ConfigurationError

SYNTAXES = ("proto2", "proto3", "editions")
_MAX_DEPTH = 64
MAP_KEYS = frozenset(
    ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool",
     "string")
)  # fmt: skip
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>(?:0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fF]?)
    |(?P<symbol>[{}\[\]()<>=;:,.+\-/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_OPTION = "option"
_OPENING, _CLOSING = "{[(<", "}])>"


@dataclass
class EnumNode:
    """An enum; its values are in the order of the file."""

    name: str
    values: list[tuple[str, int]] = field(default_factory=list)
    features: dict[str, str] = field(default_factory=dict)


@dataclass
class FieldNode:
    """A field of a message.

    `type`: a scalar type, or the name of a message or enum as it is written.
    `label`: {"", "optional", "required", "repeated"}.
    `default`: as it is written; of a text its bytes.
    `is_group`: True if it is encoded between two tags.
    """

    name: str
    number: int
    type: str
    label: str = ""
    oneof: int | None = None
    default: bytes | None = None
    packed: bool | None = None
    is_group: bool = False
    features: dict[str, str] = field(default_factory=dict)


@dataclass
class MessageNode:
    """A message, with the types that are declared in it."""

    name: str
    fields: list[FieldNode] = field(default_factory=list)
    messages: list[MessageNode] = field(default_factory=list)
    enums: list[EnumNode] = field(default_factory=list)
    is_map_entry: bool = False


@dataclass
class FileNode:
    """A file; `syntax` is "proto2", "proto3" or "editions"."""

    syntax: str = "proto2"
    package: str = ""
    imports: list[str] = field(default_factory=list)
    messages: list[MessageNode] = field(default_factory=list)
    enums: list[EnumNode] = field(default_factory=list)
    features: dict[str, str] = field(default_factory=dict)


def parse_proto(text: str) -> FileNode:
    """Parse a file. Raises `ConfigurationError` with the line."""
    return _Parser(text).file()


def unescaped(raw: bytes) -> bytes:
    """Return a text with its escapes resolved."""

    def replace(match: re.Match[bytes]) -> bytes:
        octal, digits, short, long, single = match.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if digits is not None:
            return bytes([int(digits, 16)])
        if short is not None or long is not None:
            number = int(short or long, 16)
            return chr(number).encode("utf-8", "replace") if number < 0x110000 else b"?"
        return _ESCAPED.get(single, single)

    return _ESCAPE.sub(replace, raw)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"the character {text[at]!r}, which is not allowed there,", at)
            if match.lastgroup != "space":
                self._tokens.append((str(match.lastgroup), match.group(), at))
            at = match.end()
        self._tokens.append(("end", "the end of the file", len(text)))
        self._next = 0

    # -- tokens -------------------------------------------------------------------------------

    def _error(self, reason: str, at: int | None = None) -> ConfigurationError:
        at = self._tokens[self._next][2] if at is None else at
        return ConfigurationError(f"the Protobuf schema has {reason} in line {self._text.count(chr(10), 0, at) + 1}")

    @property
    def _current(self) -> str:
        return self._tokens[self._next][1]

    def _advance(self) -> str:
        kind, token, _ = self._tokens[self._next]
        if kind == "end":
            raise self._error("an early end")
        self._next += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._tokens[self._next][:2] in (("word", token), ("symbol", token)):
            self._next += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error(f"{self._current!r} instead of {token!r}")

    def _word(self) -> str:
        if self._tokens[self._next][0] != "word":
            raise self._error(f"{self._current!r} instead of a name")
        return self._advance()

    def _name(self) -> str:
        """Read a name with dots; a leading dot makes it absolute."""
        parts = [""] if self._accept(".") else []
        parts.append(self._word())
        while self._accept("."):
            parts.append(self._word())
        return ".".join(parts)

    def _string(self) -> bytes:
        parts: list[bytes] = []
        while self._tokens[self._next][0] == "text":
            parts.append(unescaped(self._advance()[1:-1].encode("utf-8", "replace")))
        if not parts:
            raise self._error(f"{self._current!r} instead of a text")
        return b"".join(parts)

    def _integer(self) -> int:
        negative = self._accept("-")
        token = self._advance()
        try:
            number = int(token, 8) if re.fullmatch("0[0-7]+", token) else int(token, 0)
        except ValueError:
            self._next -= 1
            raise self._error(f"{token!r} instead of an integer") from None
        return -number if negative else number

    def _skip(self, until: str) -> None:
        """Skip to one of these symbols behind balanced brackets, and over it."""
        depth = 0
        while True:
            kind, token, _ = self._tokens[self._next]
            if depth == 0 and kind == "symbol" and token in until:
                self._next += 1
                return
            self._advance()
            if kind == "symbol":
                depth += (token in _OPENING) - (token in _CLOSING)
                if depth < 0:
                    raise self._error(f"{token!r} too many")

    # -- declarations -------------------------------------------------------------------------

    def file(self) -> FileNode:
        made = FileNode()
        while self._tokens[self._next][0] != "end":
            if self._accept("syntax"):
                self._expect("=")
                made.syntax = self._string().decode("utf-8", "replace")
                if made.syntax not in SYNTAXES[:2]:
                    raise self._error(f"the unknown syntax {made.syntax!r}")
                self._expect(";")
            elif self._accept("edition"):
                self._expect("=")
                self._string()
                made.syntax = "editions"
                self._expect(";")
            elif self._accept("import"):
                for kind in ("public", "weak", _OPTION):
                    self._accept(kind)
                made.imports.append(self._string().decode("utf-8", "replace"))
                self._expect(";")
            elif self._accept("package"):
                made.package = self._name()
                self._expect(";")
            elif self._accept(_OPTION):
                self._option(made.features)
            elif self._visible("message"):
                made.messages.append(self._message(0))
            elif self._visible("enum"):
                made.enums.append(self._enum())
            elif self._accept("service") or self._accept("extend"):
                self._skip("{")
                self._skip("}")
            else:
                self._expect(";")
        return made

    def _visible(self, keyword: str) -> bool:
        """Accept a declaration, which may have the visibility of edition 2024."""
        if self._current in ("export", "local") and self._tokens[self._next + 1][1] == keyword:
            self._next += 1
        return self._accept(keyword)

    def _option(self, features: dict[str, str]) -> None:
        """Read `NAME = VALUE;` behind `option`."""
        if self._accept("features"):
            self._features(features)
        self._skip(";")

    def _features(self, features: dict[str, str]) -> None:
        """Read `.NAME = VALUE`, or `= {NAME: VALUE …}`, behind `features`. Those of a language do not matter."""
        if self._accept("."):
            if self._current != "(":
                name = self._name()
                self._expect("=")
                features[name] = self._current
            return
        self._expect("=")
        self._expect("{")
        while not self._accept("}"):
            if self._accept("["):
                self._skip("]")
                self._accept(":")
                self._expect("{")
                self._skip("}")
            else:
                name = self._name()
                self._expect(":")
                features[name] = self._advance()
            if not self._accept(","):
                self._accept(";")

    def _message(self, depth: int) -> MessageNode:
        made = MessageNode(self._word())
        self._expect("{")
        self._body(made, depth)
        if made.is_map_entry:
            # As `_map`, if the message is an entry: no compiler has checked it.
            singular = [field.number for field in made.fields if field.label in ("", "optional")]
            made.is_map_entry = singular == [1, 2] and len(made.fields) == 2 and made.fields[0].type in MAP_KEYS
            for field in made.fields if made.is_map_entry else ():
                field.label = "optional"
        return made

    def _body(self, made: MessageNode, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} messages inside each other")
        oneofs = 0
        while not self._accept("}"):
            following = self._tokens[self._next + 1][0] if self._next + 1 < len(self._tokens) else "end"
            if self._current == _OPTION:
                # AWS Glue's serialisers register a map as a repeated message with this option.
                ahead = [token for _, token, _ in self._tokens[self._next + 1 : self._next + 5]]
                made.is_map_entry |= ahead == ["map_entry", "=", "true", ";"]
            if self._skip_statement(following):
                continue
            if following == "word" and self._visible("message"):
                made.messages.append(self._message(depth + 1))
            elif following == "word" and self._visible("enum"):
                made.enums.append(self._enum())
            elif self._current == "oneof" and not self._starts_field():
                self._oneof(made, depth, oneofs)
                oneofs += 1
            elif self._current == "map" and self._tokens[self._next + 1][1] == "<":
                made.fields.append(self._map(made))
            else:
                label = self._advance() if self._current in ("optional", "required", "repeated") else ""
                made.fields.append(self._field(made, depth, label, None))

    def _skip_statement(self, following: str) -> bool:
        """Skip `;`, an option, reserved numbers, or extensions, of which columns need none."""
        starts_field = self._starts_field()
        if following == "word" and self._current == "extend" and not starts_field:
            self._skip("{")
            self._skip("}")
            return True
        is_reserved = self._current in ("reserved", "extensions") and following != "symbol"
        if is_reserved or (self._current == _OPTION and not starts_field):
            self._skip(";")
            return True
        return self._accept(";")

    def _oneof(self, owner: MessageNode, depth: int, number: int) -> None:
        self._advance()
        self._word()
        self._expect("{")
        while not self._accept("}"):
            if self._accept(_OPTION):
                self._skip(";")
            elif not self._accept(";"):
                owner.fields.append(self._field(owner, depth, "", number))

    def _starts_field(self) -> bool:
        """Return whether `TYPE NAME = NUMBER` follows."""
        ahead = self._tokens[self._next : self._next + 4]
        return len(ahead) == 4 and ahead[1][0] == "word" and ahead[2][1] == "=" and ahead[3][0] == "number"

    def _field(self, owner: MessageNode, depth: int, label: str, oneof: int | None) -> FieldNode:
        if self._current == "group" and self._tokens[self._next + 1][0] == "word":
            self._advance()
            group = MessageNode(self._word())
            self._expect("=")
            made = FieldNode(group.name.lower(), self._integer(), group.name, label, oneof, is_group=True)
            self._field_options(made)
            self._expect("{")
            self._body(group, depth + 1)
            owner.messages.append(group)
            return made
        kind = self._name()
        made = FieldNode(self._word(), 0, kind, label, oneof)
        self._expect("=")
        made.number = self._integer()
        self._field_options(made)
        self._expect(";")
        return made

    def _map(self, owner: MessageNode) -> FieldNode:
        self._advance()
        self._expect("<")
        key = self._name()
        if key not in MAP_KEYS:
            raise self._error(f"a map with keys of the type {key}, which is not allowed,")
        self._expect(",")
        value = self._name()
        self._expect(">")
        name = self._word()
        entry = MessageNode("".join(f"{part[:1].upper()}{part[1:]}" for part in name.split("_")) + "Entry")
        entry.is_map_entry = True
        entry.fields = [FieldNode("key", 1, key, "optional"), FieldNode("value", 2, value, "optional")]
        owner.messages.append(entry)
        made = FieldNode(name, 0, entry.name, "repeated")
        self._expect("=")
        made.number = self._integer()
        self._field_options(made)
        self._expect(";")
        return made

    def _field_options(self, made: FieldNode) -> None:
        if not self._accept("["):
            return
        while True:
            if self._accept("default"):
                self._expect("=")
                made.default = self._value()
            elif self._accept("packed"):
                self._expect("=")
                made.packed = self._current == "true"
            elif self._accept("features"):
                self._features(made.features)
            self._skip_to_comma()
            if self._accept("]"):
                return
            self._expect(",")

    def _skip_to_comma(self) -> None:
        depth = 0
        while depth or self._current not in (",", "]"):
            kind = self._tokens[self._next][0]
            token = self._advance()
            if kind == "symbol":
                depth += (token in _OPENING) - (token in _CLOSING)

    def _value(self) -> bytes:
        if self._tokens[self._next][0] == "text":
            return self._string()
        sign = b"-" if self._accept("-") else b""
        self._accept("+")
        return sign + self._advance().encode()

    def _enum(self) -> EnumNode:
        made = EnumNode(self._word())
        self._expect("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            named = self._tokens[self._next + 1][1] == "="
            if not named and self._accept(_OPTION):
                self._option(made.features)
            elif not named and self._accept("reserved"):
                self._skip(";")
            else:
                name = self._word()
                self._expect("=")
                made.values.append((name, self._integer()))
                if self._accept("["):
                    self._skip("]")
                self._expect(";")
        return made
