"""Code blocks and commands of README and docs, for the tests that run them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIAL = tuple(sorted((ROOT / "docs" / "tutorial").glob("*.md")))
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *TUTORIAL)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"`((?:make|python|pip|%pip) [^`]+)`")

# The first cell of a row, and the names before the colon of an entry of a list.
_NAMES = re.compile(r"^(?:\| (`[^`]+`) \||\* ((?:`[^`]+`, )*`[^`]+`): )", re.MULTILINE)


def listed_names(page: str) -> list[str]:
    """Return the names that the tables and lists of a page of options explain."""
    return [name for cell, entry in _NAMES.findall(page) for name in re.findall("`([^`]+)`", cell or entry)]


@dataclass(frozen=True)
class Block:
    """A fenced block: file name of the page, language ("" if none), and text."""

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0].strip()

    def with_names(self, replaced: Mapping[str, str]) -> str:
        """Return the text with brokers, topics and folders of a test. Each replaced text must occur."""
        text = self.text
        for old, new in replaced.items():
            assert old in text, f"{old!r} is not in the block of {self.page} that begins with {self.first_line!r}"
            text = text.replace(old, new)
        return text


def blocks(page: str | None = None) -> list[Block]:
    """Return the blocks of a page, or of all pages, in order."""
    paths = [path for path in PAGES if page in (None, path.name)]
    return [Block(path.name, *match) for path in paths for match in _BLOCK.findall(path.read_text())]


def block(page: str, words: str) -> Block:
    """Return the only block of a page that contains these words."""
    (result,) = (block for block in blocks(page) if words in block.text)
    return result


def commands() -> set[str]:
    """Return the commands of all pages, from shell blocks and inline code."""
    within = {" ".join(match.split()) for path in PAGES for match in _COMMAND.findall(path.read_text())}
    lines = [line for block in blocks() if block.language == "sh" for line in block.text.splitlines()]
    return within | {line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()}
