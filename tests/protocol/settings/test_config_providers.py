"""References to external secrets in property values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.errors import ConfigurationError
from protocol.settings.config_providers import is_reference, resolve_references


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2")
    (tmp_path / "secrets.properties").write_text("user.name = alice\npassword=caf\\u00e9 \\\n  au lait\n")
    (tmp_path / "token").write_text("a\nb\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:PASSWORD_OF_A_TEST}", "hunter2"),
        ("a ${env:PASSWORD_OF_A_TEST}-${env:PASSWORD_OF_A_TEST}", "a hunter2-hunter2"),
        ("${file:FOLDER/secrets.properties:user.name}", "alice"),
        ("${file:FOLDER/secrets.properties:password}", "café au lait"),
        ("${dir:FOLDER:token}", "a\nb"),
        ("plain", "plain"),
        ("$ConnectionString", "$ConnectionString"),
        ("${other:PASSWORD_OF_A_TEST}", "${other:PASSWORD_OF_A_TEST}"),
        ("${env:}", "${env:}"),
        ("${env:PASSWORD_OF_A_TEST", "${env:PASSWORD_OF_A_TEST"),
    ],
)
def test_references_are_replaced_and_other_text_is_kept(folder: Path, text: str, value: str) -> None:
    assert resolve_references(text.replace("FOLDER", str(folder))) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${env:NOT_THERE_OF_A_TEST}", "no such name in this process's environment"),
        ("${file:FOLDER/secrets.properties:other}", "no such name in that file"),
        ("${file:FOLDER/none.properties:other}", "No such file or directory"),
        ("${dir:FOLDER:none}", "No such file or directory"),
        ("${dir:FOLDER:../token}", "the file name must not contain a path"),
        ("${dir:FOLDER:a\0b}", "not UTF-8 text"),
    ],
)
def test_unresolvable_reference_is_named_in_the_error(folder: Path, text: str, why: str) -> None:
    text = text.replace("FOLDER", str(folder))
    with pytest.raises(ConfigurationError, match=why) as refused:
        resolve_references(text)
    assert text in str(refused.value)


@pytest.mark.parametrize("text", ["${dir:FOLDER:binary}", "${env:BINARY_OF_A_TEST}", "${file:FOLDER/half:a}"])
def test_value_that_is_not_text_is_not_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setitem(os.environb, b"BINARY_OF_A_TEST", b"hunter2\xff")
    (folder / "binary").write_bytes(b"hunter2\xff")
    (folder / "half").write_text("a = hunter2\\ud83d")
    with pytest.raises(ConfigurationError, match="it is not UTF-8 text") as refused:
        resolve_references(text.replace("FOLDER", str(folder)))
    error: BaseException | None = refused.value
    while error is not None:
        assert "hunter2" not in f"{error!r} {vars(error)}"
        error = error.__cause__ or error.__context__


def test_is_reference_is_true_only_if_the_value_is_one_reference() -> None:
    assert is_reference(" ${env:A} ")
    assert not is_reference('x password="${env:A}";')
