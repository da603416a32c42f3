"""Values that stand elsewhere: `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}`, as Kafka's config providers.

What is written so is looked up where it is needed, in the process that connects to a broker: the secret itself is in no
plan, no event log and no pickled task, and a file that has changed counts from the next connection on.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from protocol.errors import ConfigurationError
from protocol.java_properties import ENCODING, parse_java_properties

# What names another provider, or none, stays as it is: a password may look so.
_REFERENCE = re.compile(r"\$\{(?:(?P<env>env):(?P<name>[^:}]+)|(?P<kind>file|dir):(?P<path>[^:}]+):(?P<key>[^:}]+))\}")


def is_reference(text: str) -> bool:
    """Whether the whole text stands elsewhere."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def resolved(text: str) -> str:
    """The text with what its references refer to. Raises `ConfigurationError` for one that leads nowhere."""
    return _REFERENCE.sub(_looked_up, text)


def _looked_up(match: re.Match[str]) -> str:
    try:
        if match["env"]:
            # Elsewhere a byte that is no UTF-8 would be an error that has the whole text in it.
            return os.environb[os.fsencode(match["name"])].decode("utf-8")
        if match["kind"] == "dir":
            return _file_in(Path(match["path"]), match["key"])
        return parse_java_properties(Path(match["path"]).read_text(ENCODING))[match["key"]]
    except KeyError:
        why = "there is no such name in " + ("this process's environment" if match["env"] else "that file")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
    # Not in there: errors of decoding have all that was read in them, and would hang on to this one.
    raise ConfigurationError(f"{match[0]} leads nowhere: {why}. It is looked up where a connection is opened.")


def _file_in(folder: Path, name: str) -> str:
    """As an orchestrator mounts secrets. A line's end at the end is the editor's, not the secret's."""
    if Path(name).name != name:
        raise OSError(0, "a file is named without a path")
    return (folder / name).read_text("utf-8").rstrip("\r\n")
