"""A secret is visible only through `reveal()`."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import pprint
import subprocess
import sys
import traceback
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache

import pytest
from pyspark import cloudpickle

from protocol.config import ClientConfig
from protocol.errors import UsageError
from protocol.settings.secret import Secret

TEXT = "hunter2-маркер"


@dataclass(frozen=True)
class SignedIn(ClientConfig):
    """A configuration with a password."""

    password: Secret | None = None


PASSWORD = Secret(TEXT)
SIGNED_IN = SignedIn((("localhost", 9092),), password=PASSWORD)


def test_secret_is_returned_by_reveal() -> None:
    assert PASSWORD.reveal() == TEXT


@pytest.mark.parametrize("holder", [Secret(TEXT), SIGNED_IN, [Secret(TEXT)], {"password": Secret(TEXT)}])
def test_secret_is_hidden_in_any_output(holder: object, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("any").warning("%s %r", holder, holder)
    shown = [f"{holder} {holder!r} {holder!s} {holder!a}", "%s %r" % (holder, holder), pprint.pformat(holder)]  # noqa: UP031
    shown += [caplog.text, json.dumps(holder, default=repr), str(ValueError(holder)), repr(ValueError(holder))]
    for text in shown:
        assert "hunter2" not in text
        assert "[hidden]" in text


def test_secret_is_hidden_in_copies_of_a_configurations_fields() -> None:
    for parts in (asdict(SIGNED_IN), astuple(SIGNED_IN), vars(SIGNED_IN), replace(SIGNED_IN, client_id="other")):
        assert "hunter2" not in repr(parts)
    assert asdict(SIGNED_IN)["password"] == PASSWORD
    with pytest.raises(TypeError):
        json.dumps(asdict(SIGNED_IN))
    with pytest.raises(TypeError):
        vars(PASSWORD)


def test_secret_is_hidden_in_tracebacks_with_local_variables() -> None:
    def fail(config: ClientConfig, password: Secret) -> None:
        raise ValueError("broken")

    try:
        fail(SIGNED_IN, PASSWORD)
    except ValueError as error:
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert text.count("[hidden]") >= 2
    assert "hunter2" not in text


def test_copy_is_the_same_secret() -> None:
    for duplicate in (copy.copy, copy.deepcopy):
        assert duplicate(PASSWORD) is PASSWORD
        assert duplicate(SIGNED_IN) == SIGNED_IN


class TestKeys:
    def test_equal_texts_are_equal_secrets(self) -> None:
        assert Secret(TEXT) == Secret(TEXT)
        assert Secret(TEXT) != Secret(TEXT + " ")
        assert Secret(TEXT) != TEXT
        assert len({Secret(TEXT), Secret(TEXT), Secret("")}) == 2
        assert Secret("\udc80") != Secret("\udc81")

    def test_configuration_with_a_secret_is_a_cache_key(self) -> None:
        @lru_cache
        def client_for(config: ClientConfig) -> object:
            return object()

        again = replace(SIGNED_IN, password=Secret(TEXT))
        assert client_for(SIGNED_IN) is client_for(again)
        assert client_for(SIGNED_IN) is not client_for(replace(SIGNED_IN, password=Secret("other")))

    def test_hash_of_a_secret_differs_between_processes(self) -> None:
        """Spark sets the same PYTHONHASHSEED for all its Python processes."""
        program = f"from protocol.settings.secret import Secret; print(hash(Secret({TEXT!r})))"
        command, environment = [sys.executable, "-c", program], {**os.environ, "PYTHONHASHSEED": "0"}
        hashes = {subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(2)}
        assert len(hashes) == 2


class TestPickling:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("holder", [PASSWORD, {"password": PASSWORD}, UsageError("broken", password=PASSWORD)])
    def test_secret_is_not_pickled_as_part_of_another_object(self, holder: object, protocol: int) -> None:
        for pickler in (pickle.Pickler, cloudpickle.Pickler):
            file = io.BytesIO()
            with pytest.raises(TypeError, match="a Secret cannot be pickled with its owner"):
                pickler(file, protocol).dump(holder)
            assert b"hunter2" not in file.getvalue()

    def test_secret_is_pickled_with_its_configuration(self) -> None:
        """As Spark sends a configuration to its executors."""
        program = (
            "import pickle, sys; config = pickle.load(sys.stdin.buffer)[0]; print(config)\n"
            "assert {config: 1}[pickle.loads(pickle.dumps(config))] == 1; print(ascii(config.password.reveal()))"
        )
        for pickler in (pickle, cloudpickle):
            command, carried = [sys.executable, "-c", program], pickler.dumps([SIGNED_IN])
            arrived = subprocess.run(command, input=carried, capture_output=True, check=True, timeout=60)
            assert arrived.stdout.decode().splitlines() == [repr(SIGNED_IN), ascii(TEXT)]
