"""The error for a top-level package `protocol` that is not this project's: the package index has another one."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_OURS = Path(__file__).parent.parent / "protocol"


def explained(error: Exception) -> ImportError | None:
    """Return the error that names the other package and the remedy; None if there is no other.

    `error`: raised while `protocol` was imported.
    """
    place = _place()
    if place is None:
        return None
    if place == _OURS:
        facts = f"files of the package in {_OURS} were overwritten by another package named `protocol`"
        remedy = "pip uninstall protocol, then pip install --force-reinstall --no-deps spark-kafka-source"
    else:
        facts = f"`protocol` is {place}, another package or module; that of spark-kafka-source is {_OURS}"
        remedy = "Rename or uninstall the other one, or remove its folder from PYTHONPATH and from the working folder"
    return ImportError(f"{facts} ({type(error).__name__}: {error}). {remedy}: see docs/troubleshooting.md")


def _place() -> Path | None:
    """Return the folder of the package that Python imports, or the file of a module."""
    loaded = sys.modules.get("protocol")
    spec = loaded.__spec__ if loaded is not None else find_spec("protocol")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parent if file.name == "__init__.py" else file
