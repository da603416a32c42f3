"""README and docs: links resolve, named files and classes exist, and diagrams of states match the code."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from protocol.consumer import assigned_partition
from protocol.group.membership.member_state import (
    CLASSIC_TRANSITIONS,
    CONSUMER_TRANSITIONS,
    IN_SESSION,
    MemberState,
    Transitions,
)
from protocol.transaction.states import TRANSITIONS
from tests.support.documents import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
PACKAGES = ("protocol", "spark_kafka_source", "tests", "benchmarks", "conf")
# Pages about the code, where each CamelCase name in backticks is a class of this project, Kafka's or Spark's.
ABOUT_CODE = [DOCS / "architecture.md", DOCS / "code-map.md", DOCS / "glossary.md", *(DOCS / "decisions").glob("*.md")]
# Names inside Spark and Python that no file of this project contains.
FOREIGN = {
    *("UserDefinedPythonDataSource", "PythonDataSourceV2", "PythonScan", "PythonScanBuilder"),
    *("PythonStreamingSourceRunner", "wrap_future"),
}

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml|properties|conf)|(?:[\w.-]+/)+")
_DOTTED = re.compile(r"(?:protocol|spark_kafka_source)(?:\.\w+)+")
_CAMEL_CASE = re.compile(r"\b(?:[A-Z][a-z0-9]+){2,}\b")
_SNAKE_CASE = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_EDGE = re.compile(r"^\s*(\w+) --> (\w+)", re.MULTILINE)


def _ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub derives from a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _missing_target(link: str, page: Path) -> str | None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{link}: no such file"
    if anchor and anchor not in _anchors(target):
        return f"{link}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_of_page_resolve(page: Path) -> None:
    links = [link for link in _LINK.findall(_FENCE.sub("", page.read_text())) if "://" not in link]
    assert [missing for link in links if (missing := _missing_target(link, page))] == []


def test_pages_that_code_refers_to_exist() -> None:
    links = {
        (path, link)
        for package in PACKAGES[:4]
        for path in (ROOT / package).rglob("*.py")
        for link in re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text())
    }
    assert len(links) > 10
    assert [f"{path}: {link}" for path, link in links if _missing_target(link, ROOT / "README.md")] == []


@cache
def _tree() -> str:
    """Return all files and folders, one per line, with a slash before each path."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if "__pycache__" not in path.parts]
    paths += [*ROOT.iterdir(), *DOCS.rglob("*")]
    return "\n".join(f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in paths) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_files_and_modules_that_page_names_exist(page: Path) -> None:
    tree, named = _tree(), set(_CODE.findall(_FENCE.sub("", page.read_text())))
    files = {name for name in named if _PATH.fullmatch(name) and not name.startswith(("make_", "job."))}
    diagrams = re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    files |= {match for diagram in diagrams for match in re.findall(r"[\w/]+\.py", diagram)}
    assert [file for file in sorted(files) if f"/{file}\n" not in tree] == []
    modules = {name for name in named if _DOTTED.fullmatch(name)}
    assert [module for module in sorted(modules) if not _resolves(module)] == []


def _resolves(dotted: str) -> bool:
    """Return True for a module, or a public name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        if importlib.util.find_spec(dotted) is not None:
            return True
    except ModuleNotFoundError:
        return False
    return hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", ABOUT_CODE, ids=_ids)
def test_classes_that_page_names_exist(page: Path) -> None:
    assert set(_CAMEL_CASE.findall(_code(page))) - _words_of_code() - FOREIGN == set()


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_functions_and_variables_that_page_names_exist(page: Path) -> None:
    assert set(_SNAKE_CASE.findall(_code(page))) - _words_of_code() - FOREIGN == set()


def _code(page: Path) -> str:
    """Return the text in backticks."""
    return "\n".join(_CODE.findall(_FENCE.sub("", page.read_text())))


@cache
def _words_of_code() -> set[str]:
    """Return all words of the code, without this file, and the names of all files."""
    paths = [path for package in PACKAGES[:4] for path in (ROOT / package).rglob("*.py") if path != Path(__file__)]
    words = re.findall(r"\w+", "\n".join(path.read_text() for path in paths))
    return {*words, *(path.stem for path in paths), Path(__file__).stem}


def _diagram(title: str) -> set[tuple[str, str]]:
    """Return the transitions of the state diagram below a heading of the architecture page."""
    section = (DOCS / "architecture.md").read_text().split(f"# {title}\n")[1]
    block = re.search(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    return set(_EDGE.findall(block[1]))


@pytest.mark.parametrize(
    ("title", "transitions"), [("Classic protocol", CLASSIC_TRANSITIONS), ("Consumer protocol", CONSUMER_TRANSITIONS)]
)
def test_diagram_of_group_member_matches_transitions(title: str, transitions: Transitions) -> None:
    """Transitions that the page describes in words are left out: to the end, and from any session state to LOST."""
    ends = {MemberState.LEAVING, MemberState.LEFT, MemberState.FAILED}
    edges = {(state.name, to.name) for state, next_states in transitions.items() for to in next_states - ends}
    in_session = IN_SESSION & transitions.keys()
    assert {(state.name, "LOST") for state in in_session} <= edges
    states_that_end = transitions.keys() - {MemberState.LEFT, MemberState.LEAVING, MemberState.FAILED}
    assert all(ends <= transitions[state] for state in states_that_end)
    assert _diagram(title) == {edge for edge in edges if edge[1] != "LOST"}


def test_diagram_of_assigned_partition_matches_transitions() -> None:
    transitions = assigned_partition.TRANSITIONS
    assert all("DROPPED" in {to.name for to in next_states} for next_states in transitions.values() if next_states)
    edges = {(state.name, to.name) for state, next_states in transitions.items() for to in next_states}
    assert _diagram("States of an assigned partition") == {edge for edge in edges if edge[1] != "DROPPED"}


def test_diagram_of_transaction_matches_transitions() -> None:
    edges = {(state.name, to.name) for state, next_states in TRANSITIONS.items() for to in next_states}
    assert _diagram("States of a transactional producer") == edges
