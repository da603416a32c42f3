"""Parse a condition in Spark's SQL, and resolve its types and implicit casts as Spark does.

`sqlglot` parses the text. An expression whose result could differ from Spark's is refused. Runs where a query is
planned; tasks receive the `Condition`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from protocol.base.java_regex import compile_java
from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.filters.condition import COLUMN_TYPES, HEADERS, Condition, Node

try:
    import sqlglot
    from sqlglot import exp
except ImportError as error:
    raise ConfigurationError(
        "filter needs the package sqlglot on the driver: pip install 'spark-kafka-source[filter]'", name="filter"
    ) from error

_BOOLEAN, _INT, _LONG, _FLOAT, _DOUBLE = pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
_STRING, _BINARY, _DATE, _TIMESTAMP = pa.string(), pa.binary(), pa.date32(), COLUMN_TYPES["timestamp"]
_INTEGERS = (pa.int8(), pa.int16(), _INT, _LONG)
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 20), strict=True))  # of the decimals that Spark casts integers to
_MAX_DIGITS = 38
# Pickling and evaluating a node need a few frames of Python's stack for each level.
_MAX_DEPTH = 100
_EXACT_IN_FLOAT = 2**24
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UTC = re.compile(r"(.*\d)\s*(?:Z|UTC|GMT|\+00:?00)")
_OFFSET = re.compile(r".*[+-]\d\d:\d\d")

_CAST_TYPES = {
    "BOOLEAN": _BOOLEAN,
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": _INT,
    "BIGINT": _LONG,
    "FLOAT": _FLOAT,
    "DOUBLE": _DOUBLE,
    "TEXT": _STRING,
    "BINARY": _BINARY,
    "TIMESTAMPTZ": _TIMESTAMP,
    "DATE": _DATE,
}
_NUMBERS = (*_INTEGERS, _FLOAT, _DOUBLE)
# What a type may be cast to, beside itself. Some casts depend on the session's time zone, or on Java's formats.
_CASTS: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    _STRING: (*_INTEGERS, _DOUBLE, _BOOLEAN, _BINARY),
    _BINARY: (_STRING,),
    _BOOLEAN: (*_NUMBERS, _STRING),
    **dict.fromkeys(_INTEGERS, (*_NUMBERS, _BOOLEAN, _STRING, _TIMESTAMP)),
    **dict.fromkeys((_FLOAT, _DOUBLE), (*_NUMBERS, _BOOLEAN)),
    _TIMESTAMP: (_LONG, _DOUBLE),
}
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.NullSafeEQ: "null_safe_equal",
    exp.NullSafeNEQ: "null_safe_equal",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.Mod: "remainder",
}
_PREDICATES: tuple[type[exp.Expr], ...] = (
    exp.Like,
    exp.ILike,
    exp.RegexpLike,
    exp.In,
    exp.Between,
    exp.Is,
    exp.Not,
    *_COMPARISONS,
)


def parse_condition(text: str, types: Mapping[str, pa.DataType] | None = None) -> Condition:
    """Parse a condition in Spark's SQL.

    Raises `ConfigurationError` if the text is no condition, or has a part whose result could differ from Spark's.
    `types`: types of `key` and `value` where they are decoded, and of `valueType` if values are of several types.
    """
    decoded = dict(types or {})
    parser = _Parser({name: decoded.get(name, COLUMN_TYPES.get(name)) for name in (*COLUMN_TYPES, HEADERS, *decoded)})
    try:
        statements = sqlglot.parse(text, dialect="spark")
        if len(statements) != 1 or statements[0] is None:
            raise ConfigurationError(f"filter is {text!r}, which is not one condition of Spark's SQL")
        root = parser.boolean(statements[0])
        too_deep = _depth(root) > _MAX_DEPTH
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).partition("\n")[0]  # then the SQL, underlined with escapes of a terminal
        raise ConfigurationError(f"filter is {text!r}, which is no condition of Spark's SQL: {reason}") from None
    except RecursionError:
        too_deep = True
    if too_deep:
        raise ConfigurationError(
            "filter is nested too deeply; apply a part to the rows that were read, in Spark with where", name="filter"
        )
    conjuncts = tuple(_conjuncts(root))
    read = frozenset().union(*(conjunct.columns for conjunct in conjuncts))
    return Condition(text, conjuncts, frozenset(decoded) & read)


_DECIMAL128 = Context(prec=34)
# What the parser reads of an expression. Others may change its meaning, as `negate` does that of LIKE.
_ARGUMENTS = {"this", "expression", "expressions", "is_string", "catalog", "db", "table", "low", "high", "to", "safe"}
_ARGUMENTS |= {"query", "unnest", "field", "start", "length", "substr"}


def _depth(node: Node) -> int:
    return 1 + max(map(_depth, node.operands), default=0)


def _conjuncts(node: Node) -> list[Node]:
    return [leaf for operand in node.operands for leaf in _conjuncts(operand)] if node.op == "and_" else [node]


def _refuse(part: exp.Expr, reason: str) -> NoReturn:
    raise ConfigurationError(
        f"filter: {part.sql('spark')} is not supported: {reason}. Apply this part to the rows that were read, in Spark "
        "with where",
        name="filter",
    )


def _literal(value: object, kind: pa.DataType) -> Node:
    return Node("literal", kind, value=value)


class _Parser:
    """Makes nodes of expressions; each class of sqlglot's expressions has a method of its name."""

    def __init__(self, types: Mapping[str, pa.DataType | None]) -> None:
        self._types = types

    def boolean(self, part: exp.Expr) -> Node:
        node = self.node(part)
        if node.type != _BOOLEAN:
            _refuse(part, f"a condition is needed here, and this is of type {_name(node.type)}")
        return self._varying(part, node)

    @staticmethod
    def _varying(part: exp.Expr, node: Node) -> Node:
        """Refuse a condition without columns: Spark decides with it, and drops what is beside it."""
        if not node.columns:
            _refuse(part, "it is the same for all records; leave it out")
        return node

    def node(self, part: exp.Expr) -> Node:
        kind = type(part)
        if part.args.get("negate"):  # NOT LIKE
            positive = part.copy()
            positive.set("negate", None)
            return _negated(self.boolean(positive))
        if unread := {name for name, value in part.args.items() if value} - _ARGUMENTS:
            _refuse(part, f"{', '.join(sorted(unread))} is not in the language of filters")
        if kind in _COMPARISONS:
            return self._comparison(part)
        if kind in _ARITHMETIC:
            return self._arithmetic(part)
        if (method := getattr(self, f"_{part.key}_node", None)) is not None:
            node: Node = method(part)
            return node
        _refuse(part, "it is not in the language of filters")

    # -- columns and literals -----------------------------------------------------------------

    def _column_node(self, part: exp.Expr) -> Node:
        names: list[str] = []
        while isinstance(part, exp.Dot):
            names.insert(0, part.expression.name)
            part = part.this
        if not isinstance(part, exp.Column):
            _refuse(part, "only columns have fields")
        first, *fields = [identifier.name for identifier in part.parts] + names
        column = _matching(first, [name for name in self._types if name != HEADERS], part)
        path = [column]
        kind: Any = self._types[column]
        for field in fields:
            if not pa.types.is_struct(kind):
                _refuse(part, f"{'.'.join(path)} has no fields")
            path.append(_matching(field, [child.name for child in kind], part))
            kind = kind.field(path[-1]).type
        return Node("column", kind, value=tuple(path))

    _dot_node = _column_node

    def _bracket_node(self, part: exp.Bracket) -> Node:
        name = part.expressions[0] if len(part.expressions) == 1 else None
        is_headers = isinstance(part.this, exp.Column) and part.this.sql().lower() == HEADERS
        if not is_headers or HEADERS not in self._types or not isinstance(name, exp.Literal) or not name.is_string:
            _refuse(part, "only headers['NAME'] has brackets")
        return Node("header", _BINARY, value=name.this)

    def _literal_node(self, part: exp.Literal) -> Node:
        text = part.this
        if part.is_string:
            return _literal(text, _STRING)
        if re.fullmatch(r"\d+", text):
            return self._integer(part, text)
        if not re.fullmatch(r"\d*\.?\d*", text):
            if math.isinf(float(text)):
                _refuse(part, "it exceeds the range of double")
            return _literal(float(text), _DOUBLE)
        number = Decimal(text)
        scale = -int(number.as_tuple().exponent)
        digits = max(len(number.as_tuple().digits), scale)
        if digits > _MAX_DIGITS:
            _refuse(part, f"it has more than {_MAX_DIGITS} digits")
        return _literal(number, pa.decimal128(digits, scale))

    def _integer(self, part: exp.Expr, text: str) -> Node:
        number = Decimal(text)  # `int` raises for more than 4,300 digits
        for kind in (_INT, _LONG):
            if _fits(number, kind):
                return _literal(int(number), kind)
        _refuse(part, "it exceeds the range of bigint")

    def _rawstring_node(self, part: exp.Expr) -> Node:
        return _literal(part.this, _STRING)

    def _hexstring_node(self, part: exp.Expr) -> Node:
        return _literal(bytes.fromhex(part.this.rjust(len(part.this) + len(part.this) % 2, "0")), _BINARY)

    def _boolean_node(self, part: exp.Expr) -> Node:
        return _literal(part.this, _BOOLEAN)

    def _null_node(self, part: exp.Expr) -> NoReturn:
        # Spark's optimizer drops what NULL decides, and with it the errors of ANSI mode.
        _refuse(part, "NULL is allowed in IS NULL and IS NOT NULL only")

    def _paren_node(self, part: exp.Expr) -> Node:
        return self.node(part.this)

    # -- conditions ---------------------------------------------------------------------------

    def _and_node(self, part: exp.Expr) -> Node:
        return Node("and_", _BOOLEAN, tuple(map(self.boolean, part.flatten(unnest=False))))

    def _or_node(self, part: exp.Expr) -> Node:
        return Node("or_", _BOOLEAN, tuple(map(self.boolean, part.flatten(unnest=False))))

    def _not_node(self, part: exp.Expr) -> Node:
        return _negated(self.boolean(part.this))

    def _comparison(self, part: exp.Expr) -> Node:
        _require_parentheses(part, part.this, part.expression)
        left, right = self._aligned(self.node(part.this), self.node(part.expression), part)
        node = Node(_COMPARISONS[type(part)], _BOOLEAN, (left, right))
        return _negated(node) if isinstance(part, exp.NullSafeNEQ) else node

    def _between_node(self, part: exp.Between) -> Node:
        _require_parentheses(part, part.this, part.args["low"], part.args["high"])
        value = self.node(part.this)
        low = self._aligned(value, self.node(part.args["low"]), part)
        high = self._aligned(value, self.node(part.args["high"]), part)
        halves = Node("greater_equal", _BOOLEAN, low), Node("less_equal", _BOOLEAN, high)
        return Node("and_", _BOOLEAN, tuple(self._varying(part, half) for half in halves))

    def _in_node(self, part: exp.In) -> Node:
        _require_parentheses(part, part.this)
        if not part.expressions:  # a query or a column
            _refuse(part, "IN takes a list")
        value = self.node(part.this)
        pairs = [self._aligned(value, self.node(choice), part) for choice in part.expressions]
        aligned = pairs[0][0]
        same = all(left == aligned and right.op == "literal" for left, right in pairs)
        if same and not pa.types.is_floating(aligned.type) and not pa.types.is_decimal(aligned.type):
            return Node("is_in", _BOOLEAN, (aligned,), tuple(dict.fromkeys(right.value for _, right in pairs)))
        equalities = tuple(Node("equal", _BOOLEAN, pair) for pair in pairs)
        return Node("or_", _BOOLEAN, equalities) if len(equalities) > 1 else equalities[0]

    def _is_node(self, part: exp.Is) -> Node:
        _require_parentheses(part, part.this)
        if isinstance(part.expression, exp.Null):
            return Node("is_null", _BOOLEAN, (self.node(part.this),))
        if isinstance(part.expression, exp.Boolean):
            return Node("null_safe_equal", _BOOLEAN, (self.boolean(part.this), self._boolean_node(part.expression)))
        _refuse(part, "IS takes NULL, TRUE or FALSE")

    def _like_node(self, part: exp.Expr, escape: str = "\\", *, lower: bool = False) -> Node:
        _require_parentheses(part, part.this)
        pattern = self._constant(part, part.expression)
        text = self._text(part)
        if lower:
            pattern, text = pattern.lower(), _cased("lower", text)
        if not re.fullmatch(f"(?s:[^{re.escape(escape)}]|{re.escape(escape)}[_%{re.escape(escape)}])*", pattern):
            _refuse(part, f"{escape} may only stand before _, % and itself")
        return _like(text, pattern, escape)

    def _ilike_node(self, part: exp.Expr) -> Node:
        return self._like_node(part, lower=True)

    def _escape_node(self, part: exp.Expr) -> Node:
        escape = self._constant(part, part.expression)
        if not isinstance(part.this, exp.Like) or len(escape) != 1 or escape in "%_":
            _refuse(part, "ESCAPE takes one character, with LIKE")
        node = self._like_node(part.this, escape)
        return _negated(node) if part.this.args.get("negate") else node

    def _regexplike_node(self, part: exp.Expr) -> Node:
        _require_parentheses(part, part.this)
        pattern = self._constant(part, part.expression)
        try:
            compiled = compile_java(pattern, any_text=True)
        except ValueError as error:
            _refuse(part, str(error))
        return Node("matches", _BOOLEAN, (self._text(part),), compiled)

    # -- functions ----------------------------------------------------------------------------

    def _startswith_node(self, part: exp.Expr) -> Node:
        return Node("starts_with", _BOOLEAN, (self._text(part),), self._constant(part, part.expression))

    def _endswith_node(self, part: exp.Expr) -> Node:
        return Node("ends_with", _BOOLEAN, (self._text(part),), self._constant(part, part.expression))

    def _contains_node(self, part: exp.Expr) -> Node:
        return Node("contains", _BOOLEAN, (self._text(part),), self._constant(part, part.expression))

    def _strposition_node(self, part: exp.Expr) -> Node:
        return Node("instr", _INT, (self._text(part),), self._constant(part, part.args["substr"]))

    def _length_node(self, part: exp.Expr) -> Node:
        node = self._characters(part)
        return Node("byte_length" if node.type == _BINARY else "length", _INT, (node,))

    def _lower_node(self, part: exp.Expr) -> Node:
        return _cased("lower", self._text(part))

    def _upper_node(self, part: exp.Expr) -> Node:
        return _cased("upper", self._text(part))

    def _substring_node(self, part: exp.Expr) -> Node:
        bounds = [part.args.get(name) for name in ("start", "length")]
        numbers = [None if bound is None else self.node(bound) for bound in bounds]
        if bounds[0] is None or any(node and (node.op != "literal" or node.type != _INT) for node in numbers):
            _refuse(part, "its start and length must be integers")
        position, count = (None if node is None else node.value for node in numbers)
        node = self._characters(part)
        return Node("byte_substring" if node.type == _BINARY else "substring", node.type, (node,), (position, count))

    def _coalesce_node(self, part: exp.Expr) -> Node:
        nodes = [self.node(argument) for argument in (part.this, *part.expressions)]
        kinds = {node.type for node in nodes}
        if kinds <= set(_INTEGERS):
            widest = max(kinds, key=_INTEGERS.index)
            nodes = [_cast(node, widest) for node in nodes]
            kinds = {widest}
        if len(kinds) != 1:
            _refuse(part, "its arguments must have one type; cast them")
        (kind,) = kinds
        return Node("coalesce", kind, tuple(nodes))

    def _abs_node(self, part: exp.Expr) -> Node:
        return self._signed(part, "abs_", lambda number: _negative(part, number) if number < 0 else number)

    def _neg_node(self, part: exp.Expr) -> Node:
        if isinstance(part.this, exp.Literal) and not part.this.is_string:
            if re.fullmatch(r"\d+", part.this.this):
                return self._integer(part, f"-{part.this.this}")
            number = self._literal_node(part.this)
            return _literal(number.value.copy_negate() if number.type != _DOUBLE else -number.value, number.type)
        return self._signed(part, "negate", partial(_negative, part))

    def _signed(self, part: exp.Expr, op: str, of_decimal: Callable[[Decimal], Decimal]) -> Node:
        node = self._number(part, part.this)
        if pa.types.is_decimal(node.type):  # a literal: there is no arithmetic of decimals
            return _literal(of_decimal(node.value), node.type)
        return Node(op, node.type, (node,), text=part.sql("spark"))

    def _anonymous_node(self, part: exp.Anonymous) -> Node:
        name = part.name.lower()
        if name == "pmod" and len(part.expressions) == 2:
            return self._arithmetic(part, "pmod")
        _refuse(part, "this function is not in the language of filters")

    def _arithmetic(self, part: exp.Expr, op: str | None = None) -> Node:
        operands = part.expressions if op is not None else (part.this, part.expression)
        op = op or _ARITHMETIC[type(part)]
        left, right = (self._number(part, operand) for operand in operands)
        if op == "divide":
            left, right = _cast(left, _DOUBLE), _cast(right, _DOUBLE)
        left, right = self._aligned(left, right, part)
        if pa.types.is_decimal(left.type):
            _refuse(part, "arithmetic with decimals; write 1.5D instead of 1.5, for example")
        return Node(op, left.type, (left, right), text=part.sql("spark"))

    def _number(self, part: exp.Expr, operand: exp.Expr) -> Node:
        node = self.node(operand)
        if node.type not in _NUMBERS and not (pa.types.is_decimal(node.type) and node.op == "literal"):
            _refuse(part, f"a number is needed, and {operand.sql('spark')} is of type {_name(node.type)}; cast it")
        return node

    def _cast_node(self, part: exp.Cast) -> Node:
        if part.args.get("safe"):
            _refuse(part, "try_cast is not in the language of filters")
        node, kind = self.node(part.this), _CAST_TYPES.get(part.to.this.name)
        if kind is None:
            _refuse(part, "it is not a type that filters cast to")
        if node.op == "literal" and node.type == _STRING and kind in (_TIMESTAMP, _DATE):
            return self._moment(part, node.value, kind)
        if node.op == "literal" and node.type in _INTEGERS and kind in _INTEGERS:  # 5L
            if not _fits(node.value, kind):
                _refuse(part, f"it exceeds the range of {_name(kind)}")
            return _cast(node, kind)
        if node.op == "literal" and pa.types.is_decimal(node.type) and kind == _DOUBLE:  # 1.5D
            return _cast(node, kind)
        if node.op == "header" and kind != _BINARY:
            node = _cast(node, _STRING)
        if kind != node.type and kind not in _CASTS.get(node.type, ()):
            _refuse(part, f"a cast of {_name(node.type)} to {_name(kind)} cannot be made equal to Spark's here")
        return _cast(node, kind, part.sql("spark"))

    _trycast_node = _cast_node  # sqlglot's class for Spark's cast, too

    # -- types --------------------------------------------------------------------------------

    def _moment(self, part: exp.Expr, text: str, kind: pa.DataType) -> Node:
        """Return a literal of a date or a time; without a time zone, Spark would take that of its session."""
        text = text.strip()
        try:
            if kind == _DATE:
                if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                    raise ValueError("a date is written as 2026-01-31")
                return _literal((date.fromisoformat(text) - _EPOCH.date()).days, kind)
            text = f"{utc[1]}+00:00" if (utc := _UTC.fullmatch(text)) else text
            if not _OFFSET.fullmatch(text) or not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?[+-]", text):
                raise ValueError(
                    "a time is written with its zone, as 2026-01-31 12:00:00Z or 2026-01-31T12:00:00+01:00"
                )
            fraction = re.search(r"\.(\d+)", text)
            if fraction:
                text = text.replace(fraction[0], f".{fraction[1]:0<6}")
            return _literal((datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1), kind)
        except ValueError as error:
            _refuse(part, str(error))

    def _aligned(self, left: Node, right: Node, part: exp.Expr) -> tuple[Node, Node]:
        """Return operands of one type, with the casts that Spark adds."""
        kinds = {left.type, right.type}
        for node, other in ((left, right), (right, left)):
            if not _comparable(node.type):
                _refuse(part, f"values of type {_name(node.type)} cannot be compared")
            if node.op == "literal" and node.type == _STRING and other.type in (_DATE, _TIMESTAMP):
                moment = self._moment(part, node.value, other.type)
                return (moment, right) if node is left else (left, moment)
        if len(kinds) == 1:
            return left, right
        kind = _BINARY if kinds == {_STRING, _BINARY} else _common_number(left, right)
        if kind is None:
            _refuse(part, f"{_name(left.type)} and {_name(right.type)} have no common type here; cast one of them")
        return _cast(left, kind), _cast(right, kind)

    def _characters(self, part: exp.Expr) -> Node:
        """Return the argument of a function of strings or bytes."""
        node = self.node(part.this)
        if node.type not in (_STRING, _BINARY):
            _refuse(part, f"a string is needed, and {part.this.sql('spark')} is of type {_name(node.type)}; cast it")
        return node

    def _text(self, part: exp.Expr) -> Node:
        return _cast(self._characters(part), _STRING)

    def _constant(self, part: exp.Expr, operand: exp.Expr) -> str:
        node = self.node(operand)
        if node.op != "literal" or not isinstance(node.value, str):
            _refuse(part, f"{operand.sql('spark')} must be a string in quotes")
        return node.value


def _require_parentheses(part: exp.Expr, *operands: exp.Expr) -> None:
    """Refuse `a = b IS NULL`: Spark's order of evaluation differs from that of other databases."""
    if any(isinstance(operand, _PREDICATES) for operand in operands):
        _refuse(part, "put a condition that is compared into parentheses")


def _like(text: Node, pattern: str, escape: str) -> Node:
    """Return a LIKE as what Spark's optimizer makes of it, which compares bytes; else as a regular expression."""
    if not set(pattern) & {escape, "_"}:
        starred = re.fullmatch("(?s)(%?)([^%]*)(%?)([^%]*)", pattern)
        if starred and (starred[2] or not starred[1]) and not (starred[1] and starred[4]):
            first, last = starred[2], starred[4]
            if not starred[1] and not starred[3]:
                return Node("equal", _BOOLEAN, (text, _literal(first, _STRING)))
            if not starred[1] and not last:
                return Node("starts_with", _BOOLEAN, (text,), first)
            if starred[1]:
                return Node("contains" if starred[3] else "ends_with", _BOOLEAN, (text,), first)
            if first:
                length = Node("length", _INT, (text,))
                long_enough = Node("greater_equal", _BOOLEAN, (length, _literal(len(first) + len(last), _INT)))
                begins = Node("starts_with", _BOOLEAN, (text,), first)
                ends = Node("ends_with", _BOOLEAN, (text,), last)
                return Node("and_", _BOOLEAN, (long_enough, begins, ends))
    special = re.escape(escape)
    pieces = re.findall(f"(?s){special}.|.", pattern)
    regex = "".join({"_": ".", "%": ".*"}.get(piece, re.escape(piece[-1])) for piece in pieces)
    return Node("matches", _BOOLEAN, (text,), re.compile(rf"(?s)\A{regex}\Z"))


def _fits(number: int | Decimal, kind: pa.DataType) -> bool:
    limit: int = 1 << kind.bit_width - 1
    return -limit <= number < limit


def _negative(part: exp.Expr, number: Decimal) -> Decimal:
    """Return the negative of a decimal, which Spark rounds to the digits of Java's `DECIMAL128`."""
    rounded = _DECIMAL128.minus(number)
    if rounded.adjusted() > number.adjusted():
        _refuse(part, "Spark rounds it to 34 digits, which do not fit its type")
    return rounded


def _negated(node: Node) -> Node:
    return Node("not_", _BOOLEAN, (node,))


def _comparable(kind: pa.DataType) -> bool:
    return kind in _NUMBERS or kind in (_BOOLEAN, _STRING, _BINARY, _DATE, _TIMESTAMP) or pa.types.is_decimal(kind)


def _cast(node: Node, kind: pa.DataType, text: str = "") -> Node:
    """Return the node as another type; `text` if the cast may fail in ANSI mode.

    Literals stay literals where possible: `is_in` and pruning need them.
    """
    if node.type == kind:
        return node
    if node.op == "literal" and (node.type, kind) == (_STRING, _BINARY):
        return _literal(node.value.encode(), kind)
    if node.op == "literal" and not text and isinstance(node.value, (int, float, Decimal)):
        convert: Callable[[Any], Any] = {True: float, False: int}[pa.types.is_floating(kind)]
        return _literal(Decimal(node.value) if pa.types.is_decimal(kind) else convert(node.value), kind)
    if {node.type, kind} <= {_STRING, _BINARY}:
        text = ""
    return Node("cast", kind, (node,), node.type, text)


def _cased(op: str, text: Node) -> Node:
    """Return `lower` or `upper` of a text. Spark ignores one inside another, although İ then becomes another text."""
    return Node(op, _STRING, text.operands if text.op in ("lower", "upper") else (text,))


def _common_number(left: Node, right: Node) -> pa.DataType | None:
    """Return the type in which Spark compares two numbers of different types; None if that depends on its mode."""
    kinds = (left.type, right.type)
    if all(kind in _INTEGERS for kind in kinds):
        return max(kinds, key=_INTEGERS.index)
    if any(pa.types.is_floating(kind) for kind in kinds):
        return _common_float(left, right)
    return _common_decimal(kinds) if any(pa.types.is_decimal(kind) for kind in kinds) else None


def _common_float(left: Node, right: Node) -> pa.DataType | None:
    for node, other in ((left, right), (right, left)):
        if pa.types.is_decimal(node.type):
            return _DOUBLE if node.op == "literal" else None
        if node.type == _FLOAT and other.type in _INTEGERS:
            # Spark compares as float, and in ANSI mode as double: the same for such a literal.
            return _FLOAT if other.op == "literal" and abs(other.value) <= _EXACT_IN_FLOAT else None
    return _DOUBLE if left.type in _NUMBERS and right.type in _NUMBERS else None


def _common_decimal(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    sizes = [(kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS.get(kind), 0) for kind in kinds]
    if any(digits is None for digits, _ in sizes):
        return None
    scale = max(scale for _, scale in sizes)
    digits = max(digits - scale for digits, scale in sizes) + scale  # type: ignore[operator]
    return pa.decimal128(digits, scale) if digits <= _MAX_DIGITS else None


def _matching(name: str, choices: Sequence[str], part: exp.Expr) -> str:
    """Return the column or field of this name; as in Spark, case does not matter."""
    matches = [choice for choice in choices if choice.lower() == name.lower()]
    if len(matches) != 1:
        _refuse(part, f"{name} is {'ambiguous' if matches else 'not one of ' + listed(choices, CHOICES)}")
    return matches[0]


def _name(kind: pa.DataType) -> str:
    names = {_CAST_TYPES[name]: name.lower() for name in _CAST_TYPES} | {_STRING: "string", _TIMESTAMP: "timestamp"}
    return names.get(kind, str(kind))
