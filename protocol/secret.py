"""A value that nobody should see: a password, a key, a token.

Made where properties are read, revealed where it is sent to a broker, and nowhere in between: whatever prints, logs,
copies or pickles what it is part of shows `[hidden]`, or fails. Only `pickled_with_secrets` takes it to another
process, for `config`.
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

# Equal secrets have equal digests in this process only. Without a key, a logged hash would let anyone try passwords.
_KEY = os.urandom(32)


class Secret:
    """Text that only `reveal` gives out. Hashable, so that a configuration with secrets can be a key."""

    __slots__ = ("_digest", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._digest = hmac.digest(_KEY, text.encode("utf-8", "surrogatepass"), "sha256")

    def reveal(self) -> str:
        """The text. Not to be kept: call it where it is used."""
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
        raise TypeError("a secret is not pickled with what it is part of; see protocol.secret.pickled_with_secrets")


class SecretBytes(bytes):
    """Bytes on their way to a broker: who prints the variables of a failure does not see them."""

    def __repr__(self) -> str:
        return HIDDEN


def pickled_with_secrets(value: object) -> bytes:
    """`value` for `pickle.loads` in another process, with its secrets, in readable form: so nowhere but on its way."""
    file = io.BytesIO()
    _RevealingPickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _RevealingPickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        return (Secret, (value.reveal(),)) if isinstance(value, Secret) else NotImplemented


def hide_variables(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles secrets as plain text: its errors have no traceback into it.

    Error collectors record the local variables of every frame in a traceback, and those of the causes.
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
    """Drop the tracebacks of an error and of its causes, with all that their local variables hold."""
    chain, seen = [error], set[int]()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            chain += [each.__cause__, each.__context__]
