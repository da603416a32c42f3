"""The page `docs/simulation-coverage.md`: what no seed has reached."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.broker_errors import BY_CODE, Refresh
from protocol.group.membership.member_state import CLASSIC_TRANSITIONS, CONSUMER_TRANSITIONS
from protocol.transaction.states import TRANSITIONS, TransactionState
from protocol.wire.registry import API_BY_KEY

if TYPE_CHECKING:
    from tests.simulation.coverage import Branch, Reached

_ROOT = Path(__file__).parents[2]
_CLIENT = (
    *("protocol/cluster", "protocol/fetch", "protocol/consumer", "protocol/group", "protocol/net"),
    *("protocol/producer", "protocol/transaction", "spark_kafka_source/driver", "spark_kafka_source/sink"),
)
_MACHINES: dict[str, tuple[str, Mapping[Any, frozenset[Any]]]] = {
    "classic": ("member of a group, classic protocol", CLASSIC_TRANSITIONS),
    "consumer": ("member of a group, consumer protocol", CONSUMER_TRANSITIONS),
    "transaction": (
        "transactional producer",
        {state: to | {TransactionState.FATAL_ERROR} - {state} for state, to in TRANSITIONS.items()},
    ),
}


def page(reached: Reached, branches: Mapping[str, list[Branch]], commit: str, python: str) -> str:
    """Return the page in Markdown.

    Parameters
    ----------
    reached : Reached
    branches : mapping of str to list of Branch
        All branches of each watched file.
    commit, python : str
        The code and the version of Python that ran.
    """
    seeds = [f"| `{name}` | {_ranges(numbers)} |" for name, numbers in sorted(reached.seeds.items())]
    return "\n".join(
        [
            "# Coverage of the simulations",
            "",
            "This page is made by `python -m tests.simulation.coverage --page docs/simulation-coverage.md`. It shows",
            "what no seed of the [scenarios](testing.md#a-simulated-world) has reached; other tests may reach it.",
            f"Commit {commit}, Python {python}, with these seeds:",
            "",
            "| scenario | seeds |",
            "| --- | --- |",
            *seeds,
            "",
            *_codes(reached),
            "",
            *_transitions(reached),
            "",
            *_branches(reached, branches),
            "",
        ]
    )


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text: 1–4, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in parts)


# -- error codes ------------------------------------------------------------------------------


def _codes(reached: Reached) -> Iterator[str]:
    apis = {api.name: api for api in API_BY_KEY.values()}
    by_api: dict[str, dict[int, int]] = {}
    for key, count in reached.codes.items():
        name, _, code = key.rpartition(" ")
        by_api.setdefault(name, {})[int(code)] = count
    by_route: dict[object, set[int]] = {}
    for name, counts in by_api.items():
        by_route.setdefault(apis[name].route, set()).update(counts)
    yield "## Error codes"
    yield ""
    yield "Codes in replies that clients received, with counts. The last column has codes of leaders and"
    yield "coordinators that have moved or failed, if only other requests to the same kind of broker received them."
    yield ""
    yield "| request | received | received by other requests only |"
    yield "| --- | --- | --- |"
    for name, counts in sorted(by_api.items()):
        missing = sorted(by_route[apis[name].route] - counts.keys())
        received = [f"{BY_CODE[code].name} {counts[code]:,}" for code in sorted(counts) if code]
        special = [BY_CODE[code].name for code in missing if BY_CODE[code].refresh is not Refresh.NONE]
        yield f"| {name} | {', '.join(received) or '-'} | {', '.join(special) or '-'} |"
    yield ""
    received_codes = {code for counts in by_api.values() for code in counts}
    client, cluster = _named_codes(*_CLIENT), _named_codes("protocol/testing/fake_kafka")
    yield "Codes that the client treats, and that no reply had:"
    yield ""
    yield "| code | treated in | the model cluster sends it |"
    yield "| --- | --- | --- |"
    for code, error in sorted(BY_CODE.items()):
        if code not in received_codes and error.name in client:
            files = ", ".join(f"`{path.removeprefix('protocol/')}`" for path in client[error.name])
            yield f"| {error.name} | {files} | {'yes' if error.name in cluster else 'no'} |"


def _named_codes(*folders: str) -> dict[str, list[str]]:
    """Return the files of folders that name each code."""
    files: dict[str, list[str]] = {}
    for path in sorted(file for folder in folders for file in (_ROOT / folder).rglob("*.py")):
        for code in set(re.findall(r"\bErrorCode\.([A-Z_]+)", path.read_text())):
            files.setdefault(code, []).append(str(path.relative_to(_ROOT)))
    return files


# -- transitions ------------------------------------------------------------------------------


def _transitions(reached: Reached) -> Iterator[str]:
    yield "## Transitions of states"
    yield ""
    yield "| object | taken | never |"
    yield "| --- | --- | --- |"
    for machine, (title, table) in _MACHINES.items():
        edges = sorted((state.name, to.name) for state, following in table.items() for to in following)
        missing = [edge for edge in edges if not reached.transitions[f"{machine} {edge[0]} {edge[1]}"]]
        by_state: dict[str, list[str]] = {}
        for state, to in missing:
            by_state.setdefault(state, []).append(to)
        never = "; ".join(f"{state} → {', '.join(following)}" for state, following in by_state.items())
        yield f"| {title} | {len(edges) - len(missing)} of {len(edges)} | {never or '-'} |"


# -- branches ---------------------------------------------------------------------------------


def _branches(reached: Reached, branches: Mapping[str, list[Branch]]) -> Iterator[str]:
    total = sum(len(of_file) for of_file in branches.values())
    count = sum(reached.branches.get(path, 0).bit_count() for path in branches)
    yield "## Branches"
    yield ""
    yield f"{count:,} of {total:,} branches were reached: functions, both sides of each `if`, bodies of loops,"
    yield "handlers and cases. Conditions within an expression are not counted. A line is the first one of a branch,"
    yield "or that of a condition that was never false."
    yield ""
    yield "| file | reached | functions that no seed called | lines of other branches |"
    yield "| --- | --- | --- | --- |"
    for path, of_file in branches.items():
        bits = reached.branches.get(path, 0)
        missing = [branch for index, branch in enumerate(of_file) if not bits >> index & 1]
        if not missing:
            continue
        never_called = [branch.function for branch in missing if branch.is_function]
        functions = ", ".join(f"`{name}`" for name in never_called)
        lines = sorted({branch.line for branch in missing if branch.function not in never_called})
        text = ", ".join(map(str, lines))
        yield f"| `{path}` | {len(of_file) - len(missing)} of {len(of_file)} | {functions or '-'} | {text or '-'} |"
