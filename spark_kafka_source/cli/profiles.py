"""Profiles: Kafka's properties of clusters, in a TOML file; one of them may be in use."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "PYKAFKA_PROFILE"
_FILE_VARIABLE = "PYKAFKA_CONFIG"
_USED = "profile"
_SECRET = re.compile(r"password|secret|jaas|token|\.key$|private|credential|user\.info", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{[^}]+\}")
# To the last @ of an address, since a password may contain one.
_USER_OF_URL = re.compile(r"(?<=://)[^/\s]+@")


@dataclass(frozen=True)
class Profiles:
    """The profiles of the file, and the name of the one in use; None if there is none.

    `path` is the file: `PYKAFKA_CONFIG`, by default `pykafka/config.toml` in the user's configuration folder.
    """

    path: Path
    by_name: Mapping[str, Mapping[str, str]]
    used: str | None

    def properties(self, name: str) -> Mapping[str, str]:
        """Return the properties of a profile. Raises `click.UsageError` for an unknown one."""
        try:
            return self.by_name[name]
        except KeyError:
            names = ", ".join(self.by_name) or "none"
            raise click.UsageError(f"{self.path} has no profile {name!r}; it has: {names}.") from None

    def use(self, name: str | None) -> None:
        """Remember which profile is in use; None for no profile."""
        mark = self.path.with_name(_USED)
        if name is None:
            mark.unlink(missing_ok=True)
        else:
            mark.write_text(f"{name}\n")


def read_profiles() -> Profiles:
    """Read the file; without one there are no profiles. Raises `click.UsageError` if it is malformed or unreadable."""
    path = _path()
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file).get("profiles", {})
        by_name = {str(name): _flat(table) for name, table in tables.items()}
    except FileNotFoundError:
        by_name = {}
    except (OSError, ValueError, AttributeError) as error:
        is_closed = isinstance(error, PermissionError) and not os.access(path.parent, os.X_OK)
        if is_closed and not os.environ.get(_FILE_VARIABLE):  # HOME is that of another user, as in a container
            return Profiles(path, {}, None)
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    mark = path.with_name(_USED)
    used = mark.read_text().strip() if mark.is_file() else None
    return Profiles(path, by_name, used or None)


def _path() -> Path:
    if path := os.environ.get(_FILE_VARIABLE):
        return Path(path)
    folder = os.environ.get("XDG_CONFIG_HOME")
    # Path.home() raises for a user without a home, who has no profiles.
    return Path(folder or os.path.expanduser("~/.config")) / "pykafka" / "config.toml"


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return properties by their dotted names: TOML reads `bootstrap.servers = …` as a table in a table."""
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            flat[prefix + name] = str(value).lower()
        elif isinstance(value, list):
            flat[prefix + name] = ",".join(map(str, value))
        else:
            flat[prefix + name] = str(value)
    return flat


def shown(name: str, value: str) -> str:
    """Return the value of a property without secrets and users of URLs; references such as `${env:…}` are shown."""
    is_hidden = _SECRET.search(name) and not _REFERENCE.fullmatch(value)
    return "[hidden]" if is_hidden else _USER_OF_URL.sub("[hidden]@", value)


def complete_profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a profile in a shell; without a readable file there are none."""
    try:
        return [CompletionItem(name) for name in read_profiles().by_name if name.startswith(incomplete)]
    except click.UsageError:
        return []
