"""Imports point down only: the layers of pyproject.toml, and what the folders at the bottom may import at most."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent

# Per folder: what of `protocol` it may import beside itself.
MAY_IMPORT = {
    "protocol/wire": {"protocol.errors"},
    "protocol/records": {"protocol.errors", "protocol.wire.primitives"},
}
# Bytes know nothing of sockets, threads and time: that is what makes them testable without any.
NEVER = {"socket", "select", "selectors", "ssl", "asyncio", "threading", "multiprocessing", "time", "datetime"}


def test_imports_follow_the_layers_of_pyproject(capfd: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capfd.readouterr().out


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_the_folder_imports_nothing_of_ours_but_what_it_may(folder: str) -> None:
    own = folder.replace("/", ".")
    allowed = (own, *MAY_IMPORT[folder])
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, line, name in imports_of(folder)
        if name.split(".")[0] in ("protocol", "spark_kafka_source")
        and not any(name == one or name.startswith(f"{one}.") for one in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_the_folder_knows_no_socket_thread_or_clock(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, line, name in imports_of(folder)
        if name.split(".")[0] in NEVER
    ]
    assert wrong == []


def test_the_standard_library_still_has_what_is_forbidden() -> None:
    assert sys.stdlib_module_names >= NEVER


def imports_of(folder: str) -> Iterator[tuple[Path, int, str]]:
    """Every import in a folder, wherever it stands in a file: path, line, full name of the module."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} is empty: was it renamed?"
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield path, node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
                # `from protocol import clock` imports protocol.clock.
                if node.module == "protocol" or node.module == "protocol.wire":
                    for alias in node.names:
                        yield path, node.lineno, f"{node.module}.{alias.name}"
                else:
                    yield path, node.lineno, str(node.module)
