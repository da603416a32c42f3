"""What a reused Python worker of Spark pays between two tasks. Called at the end of tasks, in executors.

PySpark's daemon collects garbage after every task: about 20 ms over all that PySpark, pandas, Arrow and NumPy have
loaded, more than a small task itself.
"""

from __future__ import annotations

import gc
from functools import lru_cache


@lru_cache(maxsize=1)
def tune_worker() -> None:
    """Takes what is loaded by now out of the garbage collector's sight, for ever; later calls do nothing.

    Call it at the end of a task, when all that tasks need has been imported and cached. Cycles that are alive now are
    never freed.
    """
    gc.collect()
    gc.freeze()
