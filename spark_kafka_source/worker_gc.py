"""Spares a reused Python worker of Spark most of the full garbage collection that follows each of its tasks.

Called in executors by what reads and writes there. PySpark's daemon runs `gc.collect()` after every task: about 20 ms
over all that PySpark, pandas, Arrow and NumPy have loaded, several times what a task of a small batch takes itself.
"""

from __future__ import annotations

import gc
from functools import lru_cache


@lru_cache(maxsize=1)
def freeze_once() -> None:
    """Takes what this process has loaded by now out of the collector's sight; later calls do nothing.

    Call it at the end of a task, when everything that tasks need has been imported and cached. What is alive now and
    later becomes a garbage cycle is never freed: little, and only once.
    """
    gc.collect()
    gc.freeze()
