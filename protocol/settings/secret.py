"""Values that must not be shown: passwords, keys, tokens.

Created when properties are parsed, and revealed only when sent to a broker. Printing, logging, copying or pickling an
object that contains a secret shows `[hidden]` or fails. Only `pickled_with_secrets` passes secrets to another process.
"""

from __future__ import annotations

import hmac
import io
import os
import pickle
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

HIDDEN = "[hidden]"

# Digests are comparable only within this process: a logged hash without a random key would allow guessing passwords.
_KEY = os.urandom(32)


class Secret:
    """Text that only `reveal` returns. Hashable, so that a configuration with secrets can be a dict key."""

    __slots__ = ("_digest", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._digest = hmac.digest(_KEY, text.encode("utf-8", "surrogatepass"), "sha256")

    def reveal(self) -> str:
        """Return the text. Call it at the place of use, and do not keep the result."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._digest, other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled with its owner; see protocol.settings.secret.pickled_with_secrets")


class SecretBytes(bytes):
    """Bytes to send to a broker, hidden from tools that print local variables."""

    def __repr__(self) -> str:
        return HIDDEN


def pickled_with_secrets(value: object) -> bytes:
    """Pickle `value` with its secrets in plain text. Only for transfer to another process, never for storage."""
    file = io.BytesIO()
    _RevealingPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _RevealingPickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        return (Secret, (value.reveal(),)) if isinstance(value, Secret) else NotImplemented


def hide_variables(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles secrets as plain text: its errors carry no traceback into it.

    Error collectors record the local variables of every frame of an error and of its causes.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            forget_frames(error)
            failure = error
        del args, kwargs
        raise failure

    return call


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes, and with them the local variables of all frames."""
    chain, visited = [error], set[int]()
    while chain:
        exception = chain.pop()
        if exception is not None and id(exception) not in visited:
            visited.add(id(exception))
            exception.__traceback__ = None
            chain += [exception.__cause__, exception.__context__]
