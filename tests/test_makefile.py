"""`make clean` removes all files that git ignores: those that other commands create."""

from __future__ import annotations

import os
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
    left = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
    assert left == ["Makefile", "protocol", "protocol/clock.py"]


def test_clean_downloads_leaves_other_files_of_the_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("kafka-4.2.0", "jvm-connector-4.2.0", "mine"):
        (cache / name).mkdir(parents=True)
    make(tmp_path, "clean-downloads", SPARK_KAFKA_SOURCE_CACHE=str(cache))
    assert [each.name for each in cache.iterdir()] == ["mine"]
