"""The reference in docs/cli.md: it is made from the commands, and its outputs are those of a real broker."""

from __future__ import annotations

import re

import pytest

from tests.cli.reference_examples import run_examples
from tests.cli.reference_page import PAGE, every_command, examples, markdown, outputs_of_page
from tests.cli.reference_run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    return run_examples()


def test_reference_equals_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(outputs_of_page()), "run: python -m tests.cli.reference_page"


@pytest.mark.kafka
def test_every_example_of_help_succeeds_on_a_real_broker(run: Run) -> None:
    """Slow: runs every example on a separate Kafka, since examples delete topics and groups."""
    assert {line for _, command in every_command() for line in examples(command)} <= run.tried


def _masked(path: str, output: str) -> list[str]:
    """Return the lines of an output without numbers, ids and widths of columns."""
    lines = output.splitlines()
    if path.startswith("perf"):
        lines = lines[-1:]  # A slow machine prints figures meanwhile.
    text = re.sub(r"\b[\w-]{22}(?=\s|$)", "ID", "\n".join(lines))
    text = re.sub(r"(?<=clock  controller: ).*", "", text)
    return [" ".join(line.split()) for line in re.sub(r"\d+(\.\d+)?", "0", text).splitlines()]


@pytest.mark.kafka
def test_outputs_of_reference_are_those_of_a_real_broker(run: Run) -> None:
    shown = outputs_of_page()
    assert shown.keys() == run.outputs.keys() == {path for path, _ in every_command()}
    for path, (example, output) in run.outputs.items():
        assert (example, _masked(path, output)) == (shown[path][0], _masked(path, shown[path][1])), path
