"""Java's regular expressions for topic names. What java.util.regex finds (Java 17) is written down here as facts."""

from __future__ import annotations

import sys

import pytest

from spark_kafka_source.options.java_regex import compile_java

TOPICS = (
    "orders orders-eu orders-1 ORDERS Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 test-orders beef 1234".split()  # noqa: SIM905
)

FOUND_BY_JAVA = [
    (r"orders", "orders orders-eu orders-1 test-orders"),
    (r"^orders-\d+$", "orders-1"),
    (r"(?i)ORDERS", "orders orders-eu orders-1 ORDERS Orders-EU test-orders"),
    (r"(?i:ORDERS)-eu", "orders-eu"),
    (r"ord(?:ers|re)", "orders orders-eu orders-1 test-orders"),
    (r"^(?<letter>a)\k<letter>", "aab"),
    (r"\Qa.b\E", "a.b"),
    (r"\Qa.b", "a.b"),
    (r"[\Qa-z\E]x", "axb"),
    (r"\p{Alpha}+-\p{Digit}+", "orders-1 abc-123"),
    (r"^\p{Lower}+$", "orders axb aab beef"),
    (r"^[\p{Alpha}_]+$", "orders ORDERS axb aab a_b beef"),
    (r"^[^\p{Digit}]+$", "orders orders-eu ORDERS Orders-EU a.b axb aab a_b test-orders beef"),
    (r"^\P{Digit}+$", "orders orders-eu ORDERS Orders-EU a.b axb aab a_b test-orders beef"),
    (r"\p{Lu}", "ORDERS Orders-EU"),
    (r"^\pL+$", "orders ORDERS axb aab beef"),
    (r"\p{Punct}", "orders-eu orders-1 Orders-EU a.b abc-123 a_b x.y-z.v2 test-orders"),
    (r"\p{XDigit}{4}", "beef 1234"),
    (r"^orders\z", "orders"),
    (r"^orders\Z", "orders"),
    (r"\Bders", "orders orders-eu orders-1 Orders-EU test-orders"),
    (r"a{1,2}b", "aab abc-123"),
    (r"[\[a]", "a.b axb aab abc-123 a_b"),
    (r"[a-]", "orders-eu orders-1 Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 test-orders"),
    (r"[a~~b]x", "axb"),
    (r"[a||b]x", "axb"),
    (r"^(?!test).*$", "orders orders-eu orders-1 ORDERS Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 beef 1234"),
    (r"(?<=orders-)eu", "orders-eu"),
    (r"\x61\u0062", "aab abc-123"),
    (r"[\h]", ""),
    (r"\_", "a_b"),
    (r"(?m)^orders$", "orders"),
    (r"^[a-z]+(-[a-z]+)*$", "orders orders-eu axb aab test-orders beef"),
]


@pytest.mark.parametrize(("pattern", "found"), FOUND_BY_JAVA)
def test_a_pattern_finds_the_topics_that_java_finds(pattern: str, found: str) -> None:
    assert [topic for topic in TOPICS if compile_java(pattern).search(topic)] == found.split()


def test_digits_and_letters_are_ascii_as_in_java() -> None:
    assert not compile_java(r"\d").search("\N{ARABIC-INDIC DIGIT THREE}")
    assert not compile_java(r"\w").search("\N{LATIN SMALL LETTER E WITH ACUTE}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python's re has no possessive quantifiers before 3.11")
def test_possessive_quantifiers_and_atomic_groups_are_java_s() -> None:
    assert compile_java("a++b").search("aab")
    assert not compile_java("a*+a").search("aab")
    assert compile_java("(?>ord)ers").search("orders")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"[a-c&&[b]]", "union or intersection"),
        (r"[a[bc]]", "union or intersection"),
        (r"[]a]", r"write \]"),
        (r"[a", r"without its ']'"),
        (r"[\P{Alpha}]", r"\P in a class"),
        (r"\p{Greek}", "not known here"),
        (r"a(?i)B", "write (?i:...)"),
        (r"(?x)a b", "flags 'x'"),
        (r"(?u)a", "flags 'u'"),
        (r"(?P<x>a)", "Java does not have"),
        (r"a{,2}", r"write \{"),
        (r"\R", r"escape \R"),
        (r"[\b]", r"escape \b"),
        (r"\b{g}", r"escape \b"),
        (r"\x6", r"\x without its digits"),
        ("\\", "escape"),
        (r"(", "unterminated"),
        (r"*", "nothing to repeat"),
        (r"(?<=a*)b", "look-behind"),
    ],
)
def test_what_python_would_read_otherwise_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        compile_java(pattern)
    assert message in str(raised.value)
