"""Call a vendor's library within a deadline, and report its failures as errors of this package.

The timeouts and retries of the libraries add up to minutes. The call therefore runs in another thread,
and the caller stops waiting at the deadline. Such a thread ends with the library's own timeouts. Meanwhile,
another call with the same key waits for it, so that a silent endpoint does not collect threads.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from protocol.base.condition import Event, Lock
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed, KafkaError
from protocol.settings.secret import HIDDEN, forget_frames, hide_variables

T = TypeVar("T")

SETTINGS = ("sasl.oauthbearer.metadata.authentication.type", "sasl.mechanism")

_MAX_SHOWN = 1_000
# Not AZURE_TOKEN_CREDENTIALS: names of credentials, which are in the texts of azure-identity.
_SECRET_NAME = re.compile(
    r"^(?!AZURE_TOKEN_CREDENTIALS$).*(?:SECRET|TOKEN|PASSWORD|ACCESS_KEY|PRIVATE_KEY)", re.IGNORECASE
)
_MIN_SECRET = 8
# In an echoed request: fields of a form or a query, user:password@ of a URL, and the texts of tokens and signatures.
_FIELD = re.compile(
    r"""(?i)([\w-]*(?:secret|assertion|token|password|signature|authorization)(?:=|["']\s*:\s*))"""
    r"""("[^"]*"|'[^']*'|[^\s&,;}]+)"""
)
_USER = re.compile(r"://[^/\s@]*@")
_MIN_TOKEN = 64
_TOKEN = re.compile(rf"[\w.+/=~%-]{{{_MIN_TOKEN},}}")
_RANDOM = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9]).{16}")


class _Call(threading.Thread, Generic[T]):
    """One call of a library, in its own thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(name="kafka-token", daemon=True)
        self._call = call
        self.done = Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        _hide_secrets_in_logs()
        try:
            self.result = self._call()
        except BaseException as error:
            forget_frames(error)
            self.error = error
        finally:
            self.done.set()


_running: dict[Hashable, _Call[Any]] = {}
_lock = Lock()
_hiding = False


def reset() -> None:
    """Forget the calls that run, as in a new process. For tests."""
    with _lock:
        _running.clear()


def _hide_secrets_in_logs() -> None:
    """Hide secrets in the log records of `_Call` threads: the libraries log requests, and responses that repeat them.

    No other thread's records change. A filter would have to be added to each logger of each library.
    """
    global _hiding
    with _lock:
        if _hiding:
            return
        _hiding = True
        make = logging.getLogRecordFactory()

        def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            if isinstance(threading.current_thread(), _Call):
                record.msg, record.args = without_secrets(record.getMessage()), None
                record.exc_info = None
            return record

        logging.setLogRecordFactory(made)


@hide_variables
def call_library(
    key: Hashable,
    call: Callable[[], T],
    timeout_s: float,
    *,
    source: str,
    remedy: str,
    transient: Callable[[BaseException], bool],
) -> T:
    """Call a library and return its result.

    `key`: the arguments: if a call with the same key still runs, wait for it instead.
    `call`: imports the library and asks for a token.
    `timeout_s`: maximum time to wait.
    `source`, `remedy`: the service and the library, and the remedy, for errors.
    `transient`: returns True for an exception that another attempt may resolve.
    Raises `ConnectFailed`: no answer within `timeout_s`, or a failure that another attempt may resolve.
    `AuthenticationFailed`: the library gave no token. `ConfigurationError`: the library is not installed.
    """
    with _lock:
        running = _running.get(key)
        # In a forked process, the threads of the parent are not alive.
        if running is None or not running.is_alive():
            running = _running[key] = _Call(call)
            running.start()
    if not running.done.wait(timeout_s):
        raise ConnectFailed(f"no token from {source} within {timeout_s:.1f} s; {remedy}", settings=SETTINGS)
    with _lock:
        if _running.get(key) is running:
            del _running[key]
    error = running.error
    if error is None:
        return running.result  # type: ignore[return-value]
    if isinstance(error, KafkaError):
        raise type(error)(error.message, **error.context)
    kind = ConnectFailed if transient(error) else AuthenticationFailed
    # The library's exception is not the cause: it may hold the request and the response.
    raise kind(f"no token from {source}: {error_text(error)}; {remedy}", settings=SETTINGS)


def import_library(
    module: str, package: str, extra: str, purpose: str = "the token", settings: tuple[str, ...] = SETTINGS
) -> Any:
    """Import a vendor's module; raise `ConfigurationError` with the package and the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{purpose} requires the package {package} on driver and executors ({error}): "
            f"pip install 'spark-kafka-source[{extra}]'.",
            settings=settings,
        ) from None


def error_text(error: BaseException) -> str:
    """Return the type and the text of a library's exception, without secrets: some endpoints repeat the request."""
    text = " ".join(without_secrets(str(error)).split())
    if len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def without_secrets(text: str) -> str:
    """Hide the secrets of this process's environment, the fields of requests that hold secrets, and tokens."""
    for name, value in list(os.environ.items()):
        if len(value) >= _MIN_SECRET and _SECRET_NAME.search(name) and not os.path.isabs(value):
            text = text.replace(value, HIDDEN)
    return _TOKEN.sub(_hidden_unless_path, _FIELD.sub(rf"\1{HIDDEN}", _USER.sub("://***@", text)))


def _hidden_unless_path(match: re.Match[str]) -> str:
    """Keep the paths of URLs and files: their parts are words, those of tokens are random."""
    parts = match[0].split("/")
    return HIDDEN if any(len(part) >= _MIN_TOKEN or _RANDOM.match(part) for part in parts) else match[0]
