"""Run a notebook, and store what its cells print: `python -m tests.spark.save_notebook 03_schema_registry`."""

from __future__ import annotations

import os
import sys

from tests.spark.test_notebooks import NOTEBOOKS, kernel

if __name__ == "__main__":
    os.environ["SPARK_CONF_DIR"] = str(NOTEBOOKS[0].parents[1] / "conf")
    with kernel() as run:
        run(sys.argv[1], {}, save=True)
