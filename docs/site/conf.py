"""Settings of the documentation site, which `make docs` builds.

The source folder is the checkout, so that links between README, docs and notebooks are those of the files.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from protocol.version import __version__  # noqa: E402

project = "spark-kafka-source"
author = "the contributors to spark-kafka-source"
release = version = __version__
root_doc = "README"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
include_patterns = ["*.md", "docs/**", "notebooks/*.ipynb"]
exclude_patterns = ["docs/images"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "markdown"}

myst_heading_anchors = 5
myst_fence_as_directive = ["mermaid"]
# A cell of a table may hold what looks like a formula or a placeholder: only GitHub's syntax is used.
myst_enable_extensions = ["strikethrough"]
# Types in docstrings are words: "name" is no reference to one of the attributes of that name.
suppress_warnings = ["myst.header", "ref.python"]

default_role = "code"  # `name` in docstrings
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say them
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# For `make links`.
linkcheck_timeout = 20
linkcheck_retries = 3
linkcheck_workers = 4

html_theme = "furo"
html_title = f"spark-kafka-source {version}"
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# Every page, by the need of the reader.
_CONTENTS = {
    "Tutorial": ["docs/tutorial/*", "notebooks/*", "docs/examples"],
    "How-to": [
        *("docs/migrating", "docs/groups", "docs/delivery", "docs/delta", "docs/schemas", "docs/filters"),
        *("docs/security", "docs/clouds"),
        *(
            "docs/installing",
            "docs/monitoring",
            "docs/tuning",
            "docs/consuming",
            "docs/producing",
            "docs/transactions",
            "docs/processing",
            "docs/admin",
        ),
        *("docs/testing", "docs/troubleshooting"),
    ],
    "Reference": [
        *(
            "docs/options",
            "docs/properties",
            "docs/cli",
            "docs/metrics",
            "docs/errors",
            "docs/versions",
            "docs/site/api/*",
            "docs/glossary",
        ),
    ],
    "Explanation": ["docs/architecture", "docs/locks", "docs/decisions/README", "docs/benchmarks"],
    "Project": [
        *("docs/code-map", "docs/simulation-coverage", "docs/deliberate-faults"),
        *("CONTRIBUTING", "docs/releasing", "SECURITY", "CHANGELOG"),
    ],
}
_PARTS = {"docs/decisions/README": ["docs/decisions/0*"]}


def setup(app: Any) -> None:
    """Register the hooks below with Sphinx."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _mark_examples, priority=400)  # before napoleon
    app.connect("build-finished", _copy_home)


def _read(app: Any, name: str, source: list[str]) -> None:
    """Add the contents to the home page and to pages with parts, and turn a notebook into Markdown."""
    if name == root_doc:
        source[0] += "".join(_toctree(pages, caption) for caption, pages in _CONTENTS.items())
    elif name in _PARTS:
        source[0] += _toctree(_PARTS[name])
    elif name.startswith("notebooks/"):
        source[0] = _markdown(json.loads(source[0]))


def _toctree(pages: list[str], caption: str = "") -> str:
    """Return the directive that puts pages into the navigation."""
    lines = [f"/{page}" for page in pages]
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *lines, "```", ""])


def _markdown(notebook: dict[str, Any]) -> str:
    """Return text, code and stored outputs of a notebook."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        # Newlines would end the element.
        encoded = base64.b64encode(base64.b64decode(data["image/png"])).decode()
        return f'<img alt="output of the cell above" src="data:image/png;base64,{encoded}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text}\n```"


def _mark_examples(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Mark indented paragraphs of a docstring as code."""
    marked: list[str] = []
    for line in lines:
        indented = line.startswith("    ")
        if indented and len(marked) > 1 and not marked[-1] and not marked[-2].startswith(" "):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def _copy_home(app: Any, error: Exception | None) -> None:
    """Make the home page the page of the folder."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")
