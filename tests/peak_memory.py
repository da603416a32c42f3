"""The peak memory of this process. For programs that tests run in separate processes."""

from __future__ import annotations

import re
from pathlib import Path


def peak_rss_bytes() -> int:
    """From Linux' VmHWM. Not `ru_maxrss`: that begins with what the parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+([0-9]+) kB$", status, re.MULTILINE)
    assert found is not None, status
    return int(found[1]) * 1024
