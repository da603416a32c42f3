"""The documentation site: it builds without warnings, its links and anchors exist, and it has every public name."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from matplotlib.image import imread

from tests.conftest import ROOT
from tests.support.soak import SOAK
from tests.test_front_door import PUBLIC

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="half a minute of processor time; `test_documentation` checks links of pages"),
]


class Page(HTMLParser):
    """The local links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        properties = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := properties.get(name))}
        link = properties.get("src" if tag in ("img", "script") else "href")
        if link and not urlsplit(link).scheme and not link.startswith("//"):
            self.links.add(link)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", ".", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder


def test_site_has_every_page_and_no_broken_link(site: Path) -> None:
    page = cache(Page)
    files = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    names = {str(path.relative_to(site).with_suffix("")) for path in files}
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in sources} <= names
    assert (site / "index.html").read_text() == (site / "README.html").read_text()
    broken = []
    for path in files:
        for link in page(path).links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).anchors
            ):
                broken.append(f"{path.name}: {link}")
    assert broken == []


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("name", ["README", "docs/tutorial/2-stream", "docs/architecture"])
def test_browser_shows_page(site: Path, tmp_path: Path, name: str) -> None:
    """With `SPARK_KAFKA_SOURCE_SCREENSHOTS=FOLDER` the pictures are kept."""
    picture = Path(os.environ.get("SPARK_KAFKA_SOURCE_SCREENSHOTS", tmp_path)) / f"{Path(name).name}.png"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1600")
    command = [str(BROWSER), *options, f"--user-data-dir={tmp_path}", f"--screenshot={picture}"]
    subprocess.run([*command, (site / f"{name}.html").as_uri()], capture_output=True, timeout=120, check=True)
    pixels = imread(picture)
    assert pixels.shape[:2] == (1600, 1280)
    remaining, right = pixels[:, :340, :3], pixels[:, 400:1100, :3]
    for part in (remaining, right):  # navigation, text
        assert 0.02 < np.mean(np.abs(part - part[0, 0]).max(axis=-1) > 0.2) < 0.6, "empty, or without its style sheet"


def test_reference_has_every_public_name(site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "docs" / "site" / "api").glob("*.html"))
    documented = set(re.findall(r'<dt class="sig sig-object py" id="([^"]+)"', text))
    shown = {name.rpartition(".")[2] for name in documented}
    for module in map(import_module, sorted(PUBLIC)):
        public = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        names = {name for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
        assert names <= shown, module.__name__
