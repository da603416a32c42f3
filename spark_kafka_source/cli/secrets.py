"""Secrets for commands: from a prompt, a file or the environment; never from an argument."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from protocol.settings.secret import Secret

SOURCES = "env:VARIABLE or file:PATH"


def read_secret(source: str | None, subject: str, *, may_be_empty: bool = False) -> Secret:
    """Return a secret.

    `source`: `env:VARIABLE`; `file:PATH`, without the newline at its end, where `-` is standard input; None asks twice
    on the terminal.
    `subject`: description for the prompt and for errors.
    Raises `click.UsageError`: the source does not exist, is empty or not UTF-8, or has another form. The error
    never contains a secret.
    """
    if source is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"There is no terminal to ask for the {subject}; name its source: {SOURCES}.")
        return Secret(click.prompt(subject.capitalize(), hide_input=True, confirmation_prompt=True, err=True))
    kind, _, place = source.partition(":")
    if kind not in ("env", "file") or not place:
        # The text is not shown: it may be the secret itself.
        raise click.UsageError(f"The source of the {subject} is written as {SOURCES}.")
    if kind == "env" and place not in os.environ:
        raise click.UsageError(f"The environment variable {place} for the {subject} is not set.")
    try:
        text = os.environ[place] if kind == "env" else _text_of_file(place)
        text.encode()
    except OSError as error:
        raise click.UsageError(f"The file for the {subject} cannot be read: {error.strerror}.") from error
    except UnicodeError:
        raise click.UsageError(f"The {subject} in {source} is not UTF-8.") from None
    if not text and not may_be_empty:
        raise click.UsageError(f"The {subject} in {source} is empty.")
    return Secret(text)


def _text_of_file(place: str) -> str:
    text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    return text.removesuffix("\n").removesuffix("\r")
