"""Run the notebooks cell by cell in a separate kernel, from their folder."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from tests.support.soak import SOAK
from tests.support.spark_home import BRIEF_LIFE

pytestmark = pytest.mark.soak

# Print the records that the query has read in all, and those of earlier starts.
_READ = "print('read', sum(r.numInputRows for r in etl.recentProgress), sum(p.committed for p in lag_of_query(etl)))"
NOTEBOOKS = sorted((Path(__file__).parent.parent.parent / "notebooks").glob("*.ipynb"))
# Their outputs are the same in each run, and stored: `python -m tests.spark.save_notebook 03_schema_registry`.
STORED = ("03_schema_registry", "04_groups", "05_lost_data_and_lag")


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem not in STORED], ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert cells
    assert [cell.outputs for cell in cells] == [[]] * len(cells)
    assert {cell.execution_count for cell in cells} == {None}


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """Return the outputs by notebook. One kernel runs all notebooks, because Spark starts slowly."""
    # Fewer rows and batches, for a busy machine; the original numbers only give better plots.
    fewer = {
        "spark.range(30_000)": "spark.range(12_000)",
        '"rowsPerSecond", 1000': '"rowsPerSecond", 100',
        '/shop")\n    .trigger(processingTime="1 second")': '/shop")\n    .trigger(processingTime="5 seconds")',
        "batchId < 12": "batchId < 3",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", " ".join(BRIEF_LIFE))
        with kernel() as run:
            return {
                "01_quickstart": run("01_quickstart", {**fewer, "spark.stop()": _READ}),
                **{name: run(name, {}) for name in ("02_exactly_once", *STORED)},
            }


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SOAK, reason="the tutorial has the same steps; `make soak` runs the notebook")
def test_quickstart_notebook_shows_plot_results_and_lag_zero(shown: dict[str, list[str]]) -> None:
    outputs = shown["01_quickstart"]
    first, *_ = (text for text in outputs if "customer-1" in text)
    assert "order_id" in first
    assert sum("image/png" in text for text in outputs) == 1
    (results,) = (text for text in outputs if "revenue" in text and "country" in text)
    assert re.search(r"\|\s*DE\|\s*\d+\|\s*\d+\|", results)
    (group,) = (text for text in outputs if "CURRENT-OFFSET" in text)
    assert len(re.findall(r"^orders-etl +orders +\d +(\d+) +\1 +0 ", group, re.MULTILINE)) == 3
    assert "3 orders read\n" in outputs
    assert any("kafka.security.protocol = SASL_SSL\n" in text for text in outputs)
    assert any("3 orders came over TLS\n" in text for text in outputs)
    assert not [text for text in outputs if "wonder" in text]
    ((_, result, present),) = (text.split() for text in outputs if text.startswith("read "))
    assert result == present


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SOAK, reason="`test_exactly_once` kills processes, too; `make soak` runs the notebook")
def test_exactly_once_notebook_writes_each_payment_once_after_kills(
    shown: dict[str, list[str]],
) -> None:
    outputs = shown["02_exactly_once"]
    assert sum(text.count("was killed in the middle of a batch") for text in outputs) == 2
    (table,) = (text for text in outputs if "different payments" in text)
    counts = {
        (topic, reader): (int(payments), int(different))
        for topic, reader, payments, different in re.findall(r"\|(\S+) *\|(\w+) *\|(\d+) *\|(\d+) *\|", table)
    }
    assert counts["exactly-once", "read_committed"] == (9_000, 9_000)
    for topic in ("at-least-once", "exactly-once"):
        payments, different = counts[topic, "read_uncommitted"]
        assert payments > different == 9_000


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SOAK, reason="other tests cover what the notebooks use; `make soak` runs them")
@pytest.mark.parametrize("name", STORED)
def test_notebook_shows_its_stored_outputs(shown: dict[str, list[str]], name: str) -> None:
    assert "".join(shown[name]) == "".join(outputs_of(read(name)))


def test_stored_outputs_end_with_what_the_notebooks_promise() -> None:
    stored = {name: "".join(outputs_of(read(name))) for name in STORED}
    # The order of the incompatible record arrives last, after the replay.
    assert re.search(r"\|\s*6\|\s*5\|\s*\?\?\|52\.50\|\s*NULL\|\n\+[-+]+\n\n$", stored["03_schema_registry"])
    assert stored["04_groups"].count("True\n") == 2, "both members together have each order once"
    assert "650 events read\nevents 0 committed 500 skipped 50 " in stored["05_lost_data_and_lag"]
    assert stored["05_lost_data_and_lag"].endswith("400 events read\nlag 0\n")


def test_quickstart_notebook_shows_rows_within_ten_statements() -> None:
    code = [cell.source for cell in read("01_quickstart").cells if cell.cell_type == "code"]
    until = next(number for number, source in enumerate(code) if ".show(" in source)
    statements = [statement for source in code[: until + 1] for statement in ast.parse(source).body]
    assert len(statements) < 10


@pytest.mark.parametrize("name", ["01_quickstart", "02_exactly_once"])
def test_first_cell_names_what_the_notebook_needs(name: str) -> None:
    first = read(name).cells[0].source
    assert "pandas" in first
    assert "jupyter lab" in first or "(01_quickstart.ipynb)" in first


def test_quickstart_takes_lag_from_the_package() -> None:
    """The JSON of a query's progress differs between versions of PySpark."""
    code = "\n".join(cell.source for cell in read("01_quickstart").cells if cell.cell_type == "code")
    assert "lag_of_query(" in code
    assert "LagListener(" in code
    assert not re.search(r"latestOffset|endOffset", code)


Run = Callable[..., list[str]]


@contextmanager
def kernel() -> Iterator[Run]:
    """Return `run(name, instead)`, which runs a notebook and returns its outputs: texts, and the MIME types of plots.

    Raises the error of a cell. `instead` maps texts of cells to their replacements. Variables are reset between
    notebooks. `save` stores what cells print in the notebook.
    """
    manager = AsyncKernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable  # the installed kernel of this name may use another Python
    folder = NOTEBOOKS[0].parent
    assert (folder / "../conf/spark-defaults.conf").is_file()

    def run(name: str, instead: Mapping[str, str], save: bool = False) -> list[str]:
        notebook = read(name)
        # The folder of the tests has the same settings, and lets Spark's JVM map its class archive.
        for words, further in {'"../conf"': repr(os.environ["SPARK_CONF_DIR"]), **instead}.items():
            (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and words in cell.source)
            cell.source = cell.source.replace(words, further)
        notebook.cells.append(nbformat.v4.new_code_cell("%reset -f"))
        client = NotebookClient(notebook, km=manager, timeout=400, resources={"metadata": {"path": str(folder)}})
        client.execute()
        if save:
            store(name, notebook)
        return outputs_of(notebook)

    try:
        yield run
    finally:
        run_sync(manager.shutdown_kernel)(now=True)  # clients do not stop a kernel that they did not start


def outputs_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what cells have printed, and the MIME types of plots."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    return texts + [kind for output in outputs for kind in output.get("data", {})]


def store(name: str, executed: nbformat.NotebookNode) -> None:
    """Store what the cells of an executed notebook have printed; the cells stay as they are."""
    notebook = read(name)
    for cell, ran in zip(notebook.cells, executed.cells, strict=False):
        if cell.cell_type == "code":
            printed = "".join(output.text for output in ran.outputs if output.get("name") == "stdout")
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
            cell.execution_count = ran.execution_count
    (path,) = (path for path in NOTEBOOKS if path.stem == name)
    nbformat.write(notebook, path)


def read(name: str) -> nbformat.NotebookNode:
    (path,) = (path for path in NOTEBOOKS if path.stem == name)
    return nbformat.read(path, 4)
