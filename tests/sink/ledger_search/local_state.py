"""The local state of the product's code at a request, as a value: histories with equal values continue equally.

Two processes that wait for the same reply, at the same place of the same code, with equal variables, are one process
for the search, whatever replies led there. Variables that only count tries or measure time are left out, since the
search has no time. The partial result of a comprehension is in no variable: there a process keeps its whole history.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import pyarrow as pa

from protocol.base.clock import Backoff, Clock, Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, Metadata
from protocol.wire.schema import Api

_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
_CONSTANT = (
    *(Client, Clock, Deadline, Backoff, Broker, Metadata, Api),
    *(ModuleType, CodeType, BuiltinFunctionType, pa.RecordBatch, pa.Schema),
)
_RETRY_LOOP = "protocol.cluster.dispatch"


def local_state(frame: FrameType | None, root: CodeType, history: Hashable) -> Hashable:
    """Return the state of all frames below the one of `root`, or `history` where it cannot be known."""
    frames: list[Hashable] = []
    while frame is not None and frame.f_code is not root:
        if frame.f_code.co_name in _COMPREHENSIONS:
            return history
        is_retry_loop = frame.f_globals.get("__name__") == _RETRY_LOOP
        names = ("attempt",) if is_retry_loop else tuple(frame.f_locals)
        variables = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        frames.append((frame.f_code, frame.f_lasti, value_of(variables, {})))
        frame = frame.f_back
    return tuple(frames)


def value_of(variable: Any, observed: dict[int, tuple[int, Any]]) -> Hashable:
    """Return a variable and all that it refers to as a hashable value; `observed` numbers the objects of a cycle."""
    if variable is None or isinstance(variable, (bool, int, float, str, bytes, enum.Enum, type)):
        return variable
    if isinstance(variable, _CONSTANT):
        return type(variable).__qualname__
    if isinstance(variable, BaseException):
        return type(variable), str(variable)
    if id(variable) in observed:
        return "seen", observed[id(variable)][0]
    observed[id(variable)] = len(observed), variable  # kept, so that its id is not used again
    parts: Any
    if isinstance(variable, Mapping):
        parts = [(name, part) for name, part in variable.items()]
    elif isinstance(variable, (list, tuple)):
        parts = variable
    elif isinstance(variable, (set, frozenset)):
        return type(variable), frozenset(value_of(part, observed) for part in variable)
    elif isinstance(variable, FunctionType):
        cells = [cell.cell_contents for cell in variable.__closure__ or () if _is_set(cell)]
        return variable.__code__, tuple(value_of(part, observed) for part in cells)
    elif isinstance(variable, MethodType):
        parts = [variable.__func__, variable.__self__]
    elif isinstance(variable, partial):
        parts = [variable.func, variable.args, variable.keywords]
    elif isinstance(variable, Future):
        parts = [variable.exception()] if variable.done() else []
    elif hasattr(variable, "__length_hint__"):
        return type(variable), variable.__length_hint__()
    else:
        slots = [name for kind in type(variable).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = {**{name: getattr(variable, name, None) for name in slots}, **getattr(variable, "__dict__", {})}
        parts = list(parts.items())
    return type(variable), tuple(value_of(part, observed) for part in parts)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
