"""External values: resolve `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}`, as Kafka's config providers do.

References to secrets are resolved in the process that connects to a broker, when it connects. The secret is therefore
in no query plan, event log or pickled task, and a changed file takes effect with the next connection.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from protocol.errors import ConfigurationError
from protocol.java_properties import ENCODING, parse_java_properties

# Text with another provider, or with none, remains as given: it may be a password.
_REFERENCE = re.compile(r"\$\{(?:(?P<env>env):(?P<name>[^:}]+)|(?P<kind>file|dir):(?P<path>[^:}]+):(?P<key>[^:}]+))\}")


def is_reference(text: str) -> bool:
    """Return True if the whole text is one reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def resolved(text: str) -> str:
    """Replace the references in a text by their values. Raises `ConfigurationError` for a missing value."""
    return _REFERENCE.sub(_looked_up, text)


def _looked_up(match: re.Match[str]) -> str:
    try:
        if match["env"]:
            # os.environ would raise an error that contains the whole value if a byte is not UTF-8.
            return os.environb[os.fsencode(match["name"])].decode("utf-8")
        if match["kind"] == "dir":
            return _file_in(Path(match["path"]), match["key"])
        return parse_java_properties(Path(match["path"]).read_text(ENCODING))[match["key"]]
    except KeyError:
        why = "there is no such name in " + ("this process's environment" if match["env"] else "that file")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
    # Raised outside of `except`: decoding errors contain the data read, and would become this error's context.
    raise ConfigurationError(f"{match[0]} cannot be resolved: {why}. References are resolved when a connection opens.")


def _file_in(folder: Path, name: str) -> str:
    """Read a file as orchestrators mount secrets. Line breaks at the end come from editors and are removed."""
    if Path(name).name != name:
        raise OSError(0, "the file name must not contain a path")
    return (folder / name).read_text("utf-8").rstrip("\r\n")
