"""Regular expressions for topic names. The expected matches are those of java.util.regex (Java 17)."""

from __future__ import annotations

import sys

import pytest

from protocol.base.java_regex import compile_java

TOPICS = (
    "orders orders-eu orders-1 ORDERS Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 test-orders beef 1234".split()  # noqa: SIM905
)

FOUND_BY_JAVA = [
    (r"orders", "orders orders-eu orders-1 test-orders"),
    (r"^orders-\d+$", "orders-1"),
    (r"(?i)ORDERS", "orders orders-eu orders-1 ORDERS Orders-EU test-orders"),
    (r"(?i:ORDERS)-eu", "orders-eu"),
    (r"ord(?:ers|re)", "orders orders-eu orders-1 test-orders"),
    (r"^orders\Z", "orders"),
    (r"\Bders", "orders orders-eu orders-1 Orders-EU test-orders"),
    (r"a{1,2}b", "aab abc-123"),
    (r"[\[a]", "a.b axb aab abc-123 a_b"),
    (r"^[^]a-z]*$", "ORDERS 1234"),
    (r"[a-]", "orders-eu orders-1 Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 test-orders"),
    (r"^(?!test).*$", "orders orders-eu orders-1 ORDERS Orders-EU a.b axb aab abc-123 a_b x.y-z.v2 beef 1234"),
    (r"(?<=orders-)eu", "orders-eu"),
    (r"\x61\u0062", "aab abc-123"),
    (r"\_", "a_b"),
    (r"(?m)^orders$", "orders"),
    (r"^[a-z]+(-[a-z]+)*$", "orders orders-eu axb aab test-orders beef"),
]


@pytest.mark.parametrize(("pattern", "result"), FOUND_BY_JAVA)
def test_pattern_matches_the_same_topics_as_in_java(pattern: str, result: str) -> None:
    assert [topic for topic in TOPICS if compile_java(pattern).search(topic)] == result.split()


def test_digits_and_letters_are_ascii_as_in_java() -> None:
    assert not compile_java(r"\d").search("\N{ARABIC-INDIC DIGIT THREE}")
    assert not compile_java(r"\w").search("\N{LATIN SMALL LETTER E WITH ACUTE}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python's re has no possessive quantifiers before 3.11")
def test_possessive_quantifiers_and_atomic_groups_match_as_in_java() -> None:
    assert compile_java("a++b").search("aab")
    assert not compile_java("a*+a").search("aab")
    assert compile_java("(?>ord)ers").search("orders")


@pytest.mark.parametrize(
    ("pattern", "character"),
    [
        # Only Java has these,
        (r"^(?<letter>a)\k<letter>", 2),
        (r"a\Qa.b\E", 2),
        (r"[\Qa-z\E]x", 1),
        (r"ord\p{Lower}+s", 4),
        (r"^\pL+$", 2),
        (r"^\P{Digit}+$", 2),
        (r"[^\p{Digit}]+", 1),
        (r"^orders\z", 8),
        (r"[a~~b]x", 1),
        (r"[a||b]x", 1),
        (r"[a--]x", 1),
        (r"[^]--a]", 1),
        (r"[\h]", 1),
        (r"\R", 1),
        (r"[a[bc]]", 1),
        (r"[a-c&&[b]]", 1),
        (r"(?x)a b", 1),
        (r"(?u)a", 1),
        (r"a(?i)B", 2),
        (r"\b{g}", 1),
        # only Python has these,
        (r"(?P<x>a)", 1),
        (r"a{,2}", 2),
        (r"[]a]", 1),
        (r"[\b]", 1),
        # and neither has these.
        (r"[a", 1),
        (r"\x6", 1),
        ("a\\", 2),
    ],
)
def test_syntax_with_another_meaning_in_java_is_refused_with_its_position(pattern: str, character: int) -> None:
    with pytest.raises(ValueError, match=rf"^from character {character} on, "):
        compile_java(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"), [(r"(", "unterminated"), (r"*", "nothing to repeat"), (r"(?<=a*)b", "look-behind")]
)
def test_syntax_unknown_to_python_is_refused_with_pythons_message(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_java(pattern)


# The expected matches are those of Spark's RLIKE (Java 17).
@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a.b", "a\x85b", False),
        ("a.b", "a\N{LINE SEPARATOR}b", False),
        ("a.b", "a\N{GRINNING FACE}b", True),
        ("(?s)a.b", "a\nb", True),
        ("^a$", "a\r\n", True),
        ("^a$", "a\N{LINE SEPARATOR}", True),
        ("^a\r$", "a\r\n", False),
        ("[.$]", "a", False),
        ("(?i)É", "é", False),
    ],
)
def test_pattern_for_any_text_matches_as_in_java(pattern: str, text: str, matches: bool) -> None:
    assert (compile_java(pattern, any_text=True).search(text) is not None) == matches


@pytest.mark.parametrize("pattern", [r"a\b", r"a\Z", "(?m)a", "(?s:a.)", "(?is-m:a)"])
def test_pattern_for_any_text_that_python_may_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="may not read the same"):
        compile_java(pattern, any_text=True)
