"""`make clean` removes all files that git ignores. Workflows call targets that exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import ROOT


def make(folder: Path, target: str, **variables: str) -> None:
    shutil.copy(ROOT / "Makefile", folder)
    subprocess.run(["make", "-C", folder, target], env={**os.environ, **variables}, check=True, timeout=60)


def test_clean_leaves_nothing_that_git_ignores(tmp_path: Path) -> None:
    ignored = [line.replace("*", "name") for line in (ROOT / ".gitignore").read_text().split()]
    for name in ignored:
        path = tmp_path / name
        if name.endswith("/"):
            path.mkdir()
            (path / "file").touch()
        else:
            path.touch()
    (tmp_path / "protocol" / "__pycache__").mkdir(parents=True)
    (tmp_path / "protocol" / "clock.py").touch()
    make(tmp_path, "clean")
    remaining = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert remaining == ["Makefile", "protocol", "protocol/clock.py"]


def test_clean_downloads_leaves_other_files_of_the_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("kafka-4.2.0", "jvm-connector-4.2.0", "mine"):
        (cache / name).mkdir(parents=True)
    make(tmp_path, "clean-downloads", SPARK_KAFKA_SOURCE_CACHE=str(cache))
    assert [path.name for path in cache.iterdir()] == ["mine"]


def test_workflows_and_their_page_call_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "releasing.md").read_text()
    for workflow in sorted((ROOT / ".github" / "workflows").iterdir()):
        called = set(re.findall(r"- run: make ([a-z-]+)", workflow.read_text()))
        assert called
        assert called <= targets
        (row,) = re.findall(rf"^\| `{workflow.name}` \|.*\| (.*) \|$", page, re.MULTILINE)
        assert set(re.findall(r"`([a-z]+)`", row)) == called
