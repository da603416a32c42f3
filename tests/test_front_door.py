"""The public names of both packages: each is importable, lazily."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import protocol
import protocol.admin
import protocol.clouds
import protocol.metrics
import protocol.testing
import spark_kafka_source
from spark_kafka_source.cli.pykafka import pykafka
from tests.support.documents import ROOT, blocks

PUBLIC = {
    *("protocol", "protocol.admin", "protocol.clouds", "protocol.errors", "protocol.testing", "spark_kafka_source"),
    "protocol.testing.simulation",
    *("protocol.metrics", "protocol.metrics.opentelemetry", "protocol.metrics.prometheus"),
}


@pytest.mark.parametrize(
    "package",
    [protocol, protocol.admin, protocol.clouds, protocol.metrics, protocol.testing, spark_kafka_source],
    ids=lambda package: package.__name__,
)
def test_public_names_are_listed_and_importable(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such_name")  # noqa: B009


def test_import_of_package_loads_no_other_module() -> None:
    program = (
        "import sys, protocol, protocol.admin, protocol.metrics, protocol.testing, spark_kafka_source; "
        "found = ('protocol.', 'spark_kafka_source.', 'pyarrow'); "
        "print(sorted(each for each in sys.modules if each.startswith(found)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (
        ended.stdout
        == "['protocol.admin', 'protocol.base', 'protocol.base.lazy_names', 'protocol.metrics', 'protocol.testing']\n"
    )


def test_version_is_the_same_in_both_packages_and_the_command() -> None:
    assert protocol.__version__ == spark_kafka_source.__version__
    shown = CliRunner().invoke(pykafka, ["--version"], prog_name="pykafka").output
    assert shown == f"pykafka, version {protocol.__version__}\n"


@pytest.mark.parametrize("content", ["", "import no_such_dependency", "def read(): ..."])
def test_other_package_named_protocol_is_named_with_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "protocol"
    path.mkdir()
    (path / "__init__.py").write_text(content)
    error = import_error(tmp_path)
    assert error.startswith(f"ImportError: `protocol` is {path}, another package or module")
    assert "Rename or uninstall" in error


def test_files_overwritten_by_another_package_named_protocol_are_named_with_remedy(tmp_path: Path) -> None:
    """The package index has a `protocol` with the files __init__.py and config.py, as ours."""
    for name in ("protocol", "spark_kafka_source"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "protocol" / "__init__.py").write_text("from protocol.config import read_config\n")
    error = import_error(tmp_path)
    assert error.startswith(f"ImportError: files of the package in {tmp_path / 'protocol'} were overwritten")
    assert "pip install --force-reinstall" in error


def import_error(folder: Path) -> str:
    """Import the package with this folder first on the path; return the last line of the error."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    ended = subprocess.run(
        [sys.executable, "-c", "import spark_kafka_source"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    return ended.stderr.strip().splitlines()[-1]


def test_examples_import_only_public_modules() -> None:
    texts = [(block.page, block.text) for block in blocks() if block.language == "python"]
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(notebook.read_text())["cells"]
        texts += [(notebook.name, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    imports = re.compile(r"^\s*(?:from|import) ((?:protocol|spark_kafka_source)[\w.]*)", re.MULTILINE)
    named = [(page, module) for page, text in texts for module in imports.findall(text)]
    assert len(named) > 10
    assert [pair for pair in named if pair[1] not in PUBLIC] == []
