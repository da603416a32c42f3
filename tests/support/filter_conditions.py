"""Random records and random conditions on them, in Spark's SQL, to compare filters with Spark's `where`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

TEXTS = [
    *("", "a", "b", "ab", "aB%", "a_b", "Straße", "ΣΑΣ", "İx", "é", "a\nb", "12", "-7", "+5", " 3 ", "1.5", ".", "1e3"),
    *("NaN", "inf", "true", "No", "99999999999", "-128", "128", "9223372036854775808", "\N{GRINNING FACE}x", "a\r\n"),
    *("x\x85y", "0x1F", "2d"),
]
# None ends within a character: Spark's substring reads what is behind it in memory.
BYTES = [
    b"\xff",
    b"a\xed\xa0\x80b",
    b"\xe2\x82_",
    b"\xf0\x9f\x98%",
    b"a\xc0\x80",
    b"\x80\x81b",
    b"\xf0bcd",
    b"\x00\x01",
]
INTEGERS = [
    *(0, 1, -1, 2, 3, 7, -8, 100, 127, -128, 128, 32767, -32768, 2**31 - 1, -(2**31)),
    *(2**53 + 1, 2**63 - 1, -(2**63)),
]
REALS = [0.0, -0.0, 1.5, -2.5, 0.1, 1e300, -1e-300, float("nan"), float("inf"), float("-inf"), 2.0**31, -129.0, 9.3e18]
MILLIS = [
    *(0, -1, 1, 1_700_000_000_123, -62_135_596_800_000, 253_402_300_799_999),
    *(9_000_000_000_000_000, -9_000_000_000_000_000),
]
DECIMALS = [
    *("1.5", "2.50", "0.1", "3.00", "127.5", "99999999999.25", "0.0", "128.", ".5"),
    # More digits than the 28 of Python's default context.
    *("12345678901234567890123456789.5", "999999999999999999999999999999.123456", "999999999999999999999999999999"),
    *("9223372036854775808", "123456789012345678901234567890.123450", "0.00000000000000000000000000000000012345"),
]
WIDE = [text for text in DECIMALS if len(text.partition(".")[2]) <= 6]
SIZES = {"tiny": 8, "small": 16, "num": 32, "big": 64}
VALUE = pa.struct(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("num", pa.int32()),
        ("big", pa.int64()),
        ("real", pa.float64()),
        ("single", pa.float32()),
        ("amount", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 6)),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("inner", pa.struct([("n", pa.int64()), ("t", pa.string())])),
    ]
)


def records(random: Random, count: int) -> pa.Table:
    """Return columns `topic`, `partition`, `offset`, `timestamp_ms`, `key`, `h1`, `h2` (headers) and `value`."""

    def integer(bits: int) -> int:
        number = random.choice(INTEGERS)
        return number if -(1 << bits - 1) <= number < 1 << bits - 1 else random.randint(-100, 100)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    def raw() -> bytes:
        pieces = [
            random.choice(BYTES) if random.random() < 0.2 else random.choice(TEXTS).encode()
            for _ in range(random.choice((1, 1, 2)))
        ]
        return b"".join(pieces)

    def value() -> dict[str, Any]:
        return {
            "flag": maybe(random.random() < 0.5),
            **{name: maybe(integer(bits)) for name, bits in SIZES.items()},
            "real": maybe(random.choice(REALS)),
            "single": maybe(random.choice([real for real in REALS if abs(real) < 1e30 or real != real])),
            "amount": maybe(Decimal(random.randint(-500, 500)) / 100),
            "wide": maybe(Decimal(random.choice(("", "-")) + random.choice(WIDE))),
            "text": maybe(random.choice(TEXTS)),
            "blob": maybe(raw()),
            "at": maybe(random.choice(MILLIS[:6]) * 1000 + random.choice((0, 999))),
            "day": maybe(random.randint(-10000, 30000)),
            "inner": maybe({"n": maybe(integer(64)), "t": maybe(random.choice(TEXTS))}),
        }

    columns = {
        "topic": pa.array([random.choice(("orders", "Pay")) for _ in range(count)], pa.string()),
        "partition": pa.array([random.randint(0, 9) for _ in range(count)], pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp_ms": pa.array([random.choice(MILLIS) for _ in range(count)], pa.int64()),
        "key": pa.array([maybe(raw()) for _ in range(count)], pa.binary()),
        "h1": pa.array([maybe(raw()) for _ in range(count)], pa.binary()),
        "h2": pa.array([maybe(random.choice(TEXTS).encode()) for _ in range(count)], pa.binary()),
        "value": pa.array([maybe(value()) for _ in range(count)], VALUE),
    }
    return pa.table(columns)


class ConditionMaker:
    """Makes conditions. `{h1}` and `{h2}` stand for headers."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def _pick(self, *choices: Any) -> Any:
        choice = self._random.choice(choices)
        return choice() if callable(choice) else choice

    def quoted(self, text: str | None = None) -> str:
        text = self._random.choice(TEXTS) if text is None else text
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r") + "'"

    def condition(self, depth: int = 3) -> str:
        if depth <= 0:
            return str(self._pick("value.flag", "value.flag", "true", "false", lambda: f"{self.anything(0)} IS NULL"))
        deeper = depth - 1
        return str(
            self._pick(
                lambda: f"({self.condition(deeper)} AND {self.condition(deeper)})",
                lambda: f"({self.condition(deeper)} OR {self.condition(deeper)})",
                lambda: f"NOT ({self.condition(deeper)})",
                *[lambda: self.comparison(deeper)] * 4,
                lambda: f"({self.anything(deeper)}) IS {self._pick('', 'NOT ')}NULL",
                lambda: f"({self.condition(deeper)}) IS {self._pick('', 'NOT ')}{self._pick('TRUE', 'FALSE')}",
                lambda: f"({self.condition(deeper)}) {self._pick('=', '<=>', '<>', '<')} ({self.condition(deeper)})",
                lambda: self.choice(self.string(deeper), self.quoted),
                lambda: self.choice(self.integer(deeper), self.number),
                lambda: self.choice(self._pick("value.amount", "value.wide"), self.decimal),
                lambda: (
                    f"abs({self.decimal()}) {self._pick('=', '<', '>=')} {self._pick('value.amount', 'value.wide')}"
                ),
                lambda: f"{self._pick('abs', '-')}({self._pick('value.amount', 'value.wide')}) < {self.decimal()}",
                lambda: f"{self.integer(deeper)} BETWEEN {self.integer(deeper)} AND {self.integer(0)}",
                lambda: f"{self.integer(deeper)} NOT BETWEEN {self.integer(0)} AND {self.integer(0)}",
                *[lambda: self.match(deeper)] * 3,
                lambda: f"cast({self._random.choice((self.string, self.integer, self.real))(deeper)} AS boolean)",
            )
        )

    def choice(self, left: str, make: Callable[[], str]) -> str:
        choices = ", ".join(self._pick(make) for _ in range(3))
        return f"{left} {self._pick('', 'NOT ')}IN ({choices})"

    def comparison(self, depth: int) -> str:
        op = self._pick("=", "<>", "<", "<=", ">", ">=", "<=>")
        kind = self._pick("string", "binary", "integer", "integer", "real", "decimal", "time", "day", "mixed")
        if kind in ("string", "binary", "integer", "real", "time"):
            make = getattr(self, kind)
            return f"{make(depth)} {op} {make(depth)}"
        if kind == "decimal":
            columns = ("value.amount", "value.wide")
            left = self._pick(*columns, *columns, lambda: self.integer(depth), lambda: self.real(depth), "value.single")
            right = self._pick(*[self.decimal] * 4, self.decimal if left not in columns else self._pick(*columns), "3")
            return f"{left} {op} {right}" if self._random.random() < 0.8 else f"{right} {op} {left}"
        if kind == "day":
            return f"value.day {op} {self._pick('value.day', quote('2001-02-03'), 'DATE ' + quote('1969-12-31'))}"
        return f"{self.integer(depth)} {op} {self.real(depth)}"

    def decimal(self, depth: int = 2) -> str:
        """Return a literal with signs, or its absolute value."""
        number = str(self._random.choice(DECIMALS))
        for _ in range(self._random.randint(0, depth)):
            number = self._pick(f"-{number}" if number[0] != "-" else f"- {number}", f"-({number})", f"abs({number})")
        return number

    def match(self, depth: int) -> str:
        text = self.string(depth)
        pattern = "".join(
            self._pick("%", "%", "_", "a", "b", "é", "1", "\\\\%", "ß", "A") for _ in range(self._random.randint(0, 4))
        )
        regex = "".join(
            self._pick("a", "b", ".", "^", "$", "[a-z]", "\\\\d", "(a|b)", "a*", "\\\\s", "(?:1)", ".+", "é")
            for _ in range(self._random.randint(1, 4))
        )
        return str(
            self._pick(
                *[lambda: f"{text} {self._pick('', 'NOT ')}LIKE '{pattern}'"] * 3,
                lambda: f"{text} ILIKE '{pattern}'",
                lambda: f"{text} RLIKE '{regex.replace('^*', '^').replace('$*', '$')}'",
                lambda: f"startswith({text}, {self.quoted()})",
                lambda: f"endswith({text}, {self.quoted()})",
                lambda: f"contains({text}, {self.quoted()})",
            )
        )

    def anything(self, depth: int) -> str:
        return str(self._random.choice((self.string, self.binary, self.integer, self.real, self.time))(depth))

    def string(self, depth: int) -> str:
        leaf = (
            *("cast(key AS string)", "cast({h1} AS string)", "cast({h2} AS string)"),
            *("value.text", "value.text", "topic", "value.inner.t", self.quoted, "cast(value.blob as string)"),
        )
        if depth <= 0:
            return str(self._pick(*leaf))
        deeper = depth - 1
        return str(
            self._pick(
                *leaf,
                lambda: f"lower({self.string(deeper)})",
                lambda: f"upper({self.string(deeper)})",
                lambda: (
                    f"substring({self.string(deeper)}, {self._random.randint(-4, 4)}, {self._random.randint(-1, 4)})"
                ),
                lambda: f"substring({self.string(deeper)}, {self._random.randint(-4, 4)})",
                lambda: f"coalesce({self.string(deeper)}, {self.string(deeper)})",
                lambda: f"cast({self.integer(deeper)} AS string)",
                "cast(value.flag AS string)",
                lambda: f"cast({self.binary(deeper)} AS string)",
            )
        )

    def binary(self, depth: int) -> str:
        quoted = lambda: f"cast({self.quoted()} AS binary)"  # noqa: E731
        leaf = ("key", "{h1}", "{h2}", "value.blob", "X'61'", "X'FF'", "X''", quoted)
        if depth <= 0:
            return str(self._pick(*leaf))
        return str(
            self._pick(
                *leaf,
                lambda: f"cast({self.string(depth - 1)} AS binary)",
                lambda: (
                    f"substring({self.binary(depth - 1)}, {self._random.randint(-4, 4)}, {self._random.randint(-1, 4)})"
                ),
            )
        )

    def number(self) -> str:
        number = self._random.choice(INTEGERS[:-1]) if self._random.random() < 0.3 else self._random.randint(-5, 12)
        small = self._random.randint(-9, 9)
        return str(self._pick(str(number), str(number), f"{number}L", f"{small}Y", f"-({number})", f"-({small}S)"))

    def integer(self, depth: int) -> str:
        columns = ("value.tiny", "value.small", "value.num", "value.big", "value.inner.n")
        leaf = ("partition", "offset", *columns, self.number)
        if depth <= 0:
            return str(self._pick(*leaf))
        deeper = depth - 1
        kind = self._pick("tinyint", "smallint", "int", "bigint")
        return str(
            self._pick(
                *leaf,
                *[lambda: f"({self.integer(deeper)} {self._pick('+', '-', '*', '%')} {self.integer(deeper)})"] * 3,
                lambda: f"pmod({self.integer(deeper)}, {self.integer(deeper)})",
                lambda: f"abs({self.integer(deeper)})",
                lambda: f"-({self.integer(deeper)})",
                lambda: f"length({self._random.choice((self.string, self.binary))(deeper)})",
                lambda: f"instr({self.string(deeper)}, {self.quoted()})",
                lambda: f"cast({self._random.choice((self.string, self.integer, self.real))(deeper)} AS {kind})",
                "cast(value.flag AS int)",
                "cast(timestamp AS bigint)",
                lambda: f"coalesce({self.integer(deeper)}, {self.integer(deeper)})",
            )
        )

    def real(self, depth: int) -> str:
        leaf = (
            "value.real",
            "1.5D",
            "-2.5D",
            "-(-2.5D)",
            "0D",
            "cast(value.single AS double)",
            "value.real",
            "1e3",
            "-(1e3)",
        )
        if depth <= 0:
            return str(self._pick(*leaf))
        deeper = depth - 1
        return str(
            self._pick(
                *leaf,
                lambda: f"({self.real(deeper)} {self._pick('+', '-', '*', '/', '%')} {self.real(deeper)})",
                lambda: f"({self.integer(deeper)} / {self.integer(deeper)})",
                lambda: f"pmod({self.real(deeper)}, {self.real(deeper)})",
                lambda: f"abs({self.real(deeper)})",
                lambda: f"-({self.real(deeper)})",
                lambda: f"cast({self._random.choice((self.string, self.integer))(deeper)} AS double)",
                "cast(value.at AS double)",
            )
        )

    def time(self, depth: int) -> str:
        return str(
            self._pick(
                "timestamp",
                "value.at",
                "TIMESTAMP '2023-11-14 22:13:20.123Z'",
                "TIMESTAMP '1969-12-31T23:59:59+01:00'",
                "cast(value.num AS timestamp)",
                "cast(value.big AS timestamp)",
            )
        )


def quote(text: str) -> str:
    return f"'{text}'"
