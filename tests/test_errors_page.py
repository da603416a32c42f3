"""docs/errors.md: every error class has an entry, and the quoted texts are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache

import pytest

from protocol import errors
from spark_kafka_source import error_messages
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
# Fragments of a text shorter than this prove nothing.
_SHORTEST = 10


def error_classes() -> set[str]:
    """Return the names of all classes of `KafkaError`, and of the errors of the command. Others are internal."""
    names = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    for package in ("protocol", "spark_kafka_source"):
        for path in (ROOT / package).rglob("*.py"):
            bases = names | ({"Exception"} if path.parent.name == "cli" else set())
            classes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
            names |= {class_.name for class_ in classes if {ast.unparse(base) for base in class_.bases} & bases}
    return {name for name in names if not name.startswith("_")}


def test_every_error_class_has_an_entry() -> None:
    headings = set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE))
    of_command = set(re.findall(r"^\* `(\w+)`", PAGE.split("## Errors of the command")[1], re.MULTILINE))
    assert headings | of_command == error_classes()


def test_every_error_class_of_spark_has_an_entry() -> None:
    public = {name: value for name, value in vars(error_messages).items() if name.isupper() and name[0] != "_"}
    assert set(re.findall(r"^\| `([A-Z_.]+)` \|", PAGE, re.MULTILINE)) == set(public.values())


@cache
def texts_of_code() -> str:
    """Return all strings of the code, with … for what is formatted into them."""
    collected = []
    for package in ("protocol", "spark_kafka_source"):
        for path in (ROOT / package).rglob("*.py"):
            collected += [text for node in ast.walk(ast.parse(path.read_text())) if (text := text_of(node))]
    return re.sub("…+", "…", "\n".join(collected))


def text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "…" for part in node.values)
    return None


QUOTED = [" ".join(text.split()) for text in re.findall(r"^\* `([^`]+)`", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("text", [text for text in QUOTED if " " in text])
def test_text_of_an_entry_is_one_of_the_code(text: str) -> None:
    """Each part between two placeholders occurs, and in the order of one text of the code.

    Slow if it is the first: parses each file of the product.
    """
    parts = [part.strip() for part in text.split("…") if part.strip(" :;,.()")]
    assert max(map(len, parts)) >= _SHORTEST
    pattern = ".*".join(re.escape(part) for part in parts)
    assert re.search(pattern, texts_of_code())
