"""Imports point down only: the layers of pyproject.toml, and the allowed imports of the lowest folders."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Folder -> modules of `protocol` that it may import, beside its own.
MAY_IMPORT = {
    "protocol/wire": {"protocol.errors", "protocol.kafka_terms"},
    "protocol/records": {
        "protocol.errors",
        "protocol.kafka_terms",
        "protocol.base.listing",
        "protocol.wire.primitives",
    },
    "protocol/sasl": {
        "protocol.settings.config_providers",
        "protocol.errors",
        "protocol.settings.property_kinds",
        "protocol.settings.secret",
        "protocol.base.spelling",
    },
    "protocol/group/assignors": {
        "protocol.errors",
        "protocol.group.member",
        "protocol.kafka_terms",
        "protocol.base.listing",
        "protocol.wire",
    },
}
# Code that parses bytes and decides is sans-IO, so that tests need no sockets, threads or clocks.
NEVER = {"socket", "select", "selectors", "ssl", "asyncio", "threading", "multiprocessing", "time", "datetime"}


def test_imports_follow_the_layers_of_pyproject() -> None:
    # In a separate process, because it disables loggers that other tests capture.
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_nothing_of_ours_but_what_it_may(folder: str) -> None:
    allowed = (folder.replace("/", "."), *MAY_IMPORT[folder])
    ours = [row for row in imports_of(folder) if row[0].split(".")[0] in ("protocol", "spark_kafka_source")]
    wrong = [text for name, text in ours if not any(name == first or name.startswith(f"{first}.") for first in allowed)]
    assert wrong == []


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_knows_no_socket_thread_or_clock(folder: str) -> None:
    assert [text for name, text in imports_of(folder) if name.split(".")[0] in NEVER] == []


@pytest.mark.parametrize("room", ["plan", "options"])
def test_plans_import_neither_spark_nor_sockets(room: str) -> None:
    """The contract in pyproject.toml checks import statements; this test checks the modules that are loaded."""
    files = (ROOT / "spark_kafka_source" / room).glob("*.py")
    modules = [f"spark_kafka_source.{room}.{path.stem}" for path in files if not path.stem.startswith("__")]
    assert modules
    unwanted = {"socket", "ssl", "pyspark", "pandas"}
    program = f"import sys, {', '.join(modules)}; print({unwanted} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")


def test_standard_library_still_has_what_is_forbidden() -> None:
    assert sys.stdlib_module_names >= NEVER


def imports_of(folder: str) -> Iterator[tuple[str, str]]:
    """Yield all imports in a folder, also nested ones: full name of the module, and a text that names the place."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} is empty: was it renamed?"
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
                # `from protocol import clock` imports protocol.base.clock.
                of_package = node.module in ("protocol", "protocol.wire")
                names = [f"{node.module}.{alias.name}" for alias in node.names] if of_package else [str(node.module)]
            else:
                continue
            for name in names:
                yield name, f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
