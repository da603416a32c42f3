"""Every order of events of an exactly-once query within bounds, searched over the product's own code."""

from __future__ import annotations

import dataclasses

import pytest

from tests.sink.ledger_search.configurations import CONTROLS, LARGE, SMALL, Configuration
from tests.sink.ledger_search.search import search
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak


@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("name", LARGE if SOAK else SMALL)
def test_batch_is_visible_once_and_whole_in_every_order_of_events(name: str) -> None:
    """Slow: thousands of states, each reached by running the sink's own decisions."""
    result = search((LARGE if SOAK else SMALL)[name])
    assert result.violation is None, "\n".join((result.violation, *result.counterexample))
    assert result.is_complete


@pytest.mark.parametrize("name", CONTROLS)
def test_search_finds_each_rule_that_is_taken_out(name: str) -> None:
    control = CONTROLS[name]
    with control.without():
        result = search(control.configuration)
    assert result.violation is not None
    assert control.violated in result.violation
    assert result.counterexample


def test_merging_equal_processes_changes_no_verdict() -> None:
    """The same search, with each process by its whole history. Slow: many more states."""
    configuration = Configuration(tasks=1, lost_replies=1)
    merged, result = (search(dataclasses.replace(configuration, merge=merge)) for merge in (True, False))
    assert merged.violation is result.violation is None
    assert 1 < merged.states < result.states
    control = CONTROLS["a takeover that aborts before the ledger names the new start"]
    with control.without():
        result = search(dataclasses.replace(control.configuration, merge=False), 50_000)
    assert control.violated in str(result.violation)
