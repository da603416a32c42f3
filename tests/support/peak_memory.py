"""Peak memory of this process, for programs that tests run in separate processes."""

from __future__ import annotations

import re
from pathlib import Path


def peak_rss_bytes() -> int:
    """Return Linux' VmHWM. `ru_maxrss` would include the memory of the parent at the time of the fork."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^VmHWM:\s+([0-9]+) kB$", status, re.MULTILINE)
    assert match is not None, status
    return int(match[1]) * 1024
