"""Properties files, with the syntax documented for `java.util.Properties.load`."""

from __future__ import annotations

import pytest

from protocol.settings.config_providers import parse_java_properties


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("Truth = Beauty\n T2:Beauty\nT3    :Beauty", {"Truth": "Beauty", "T2": "Beauty", "T3": "Beauty"}),
        ("fruits    apple, banana, \\\n     pear, \\\r\n  mango", {"fruits": "apple, banana, pear, mango"}),
        ("cheeses\n\n  # a comment \\\n! another\nempty =", {"cheeses": "", "empty": ""}),
        (r"a\:b\=c\ d = e\=f", {"a:b=c d": "e=f"}),
        ("path = C\\:\\\\keys\\\\\nnext = \\u00e9\\t\\q", {"path": "C:\\keys\\", "next": "é\tq"}),
        ("twice=1\ntwice = 2 ", {"twice": "2 "}),
        ('jaas = Login required password="a=b:c#d";', {"jaas": 'Login required password="a=b:c#d";'}),
        ("last = \\", {"last": ""}),
        ("bad = \\u12", {"bad": "u12"}),
        ("pair = \\ud83d\\ude00\nhalf = \\ude00", {"pair": "\U0001f600", "half": "\ude00"}),
        ("", {}),
    ],
)
def test_properties_file_is_read_as_by_java(text: str, result: dict[str, str]) -> None:
    assert parse_java_properties(text) == result
