"""Parse `sasl.jaas.config` as Java does: one login module and its options. Pure functions.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password='pa"ss';

The rules are those of Java's `StreamTokenizer` as configured by Kafka's newest `JaasConfig` (until 4.2 fewer words were
allowed without quotes): both kinds of quotes, C escapes, and comments; a single slash also begins a comment. No error
message contains the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.errors import ConfigurationError
from protocol.settings.secret import Secret

_TOKEN = re.compile(
    r"""
      [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /(?:.[^\r\n]*)?                          # skipped
    | (?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?:(?P=quote)|(?=[\r\n])|\Z)
    | (?P<word>[^\x00-\x20"'/;=\x81-\x9f]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|(.))", re.DOTALL)
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True)
class LoginModule:
    """A login module: its Java class as configured, and its options, each of which may be a secret."""

    name: str
    options: Mapping[str, Secret]


def parse_jaas(text: Secret) -> LoginModule:
    """Parse the text; raise `ConfigurationError`, whose message contains nothing of the text."""
    module = _module(_tokens(text.reveal()))
    if isinstance(module, str):
        raise ConfigurationError(
            f"sasl.jaas.config is [hidden], which cannot be read: {module}.", settings=("sasl.jaas.config",)
        )
    return module


def _module(tokens: list[tuple[str, bool]]) -> LoginModule | str:
    """Return the module, or the error as text: a traceback from here would have the secrets in its variables."""
    if len(tokens) < 2 or tokens[0][1] or tokens[1][1] or tokens[1][0].lower() not in _FLAGS:
        return "it must begin with the class of a login module and the word required"
    if tokens[-1] != (";", True):
        return "it must end with a semicolon"
    module_options = tokens[2:-1]
    if (";", True) in module_options:
        return "it must have one login module; another one follows the first semicolon"
    if len(module_options) % 3 or any(
        name_is_sign or equals != ("=", True) or value_is_sign
        for (_, name_is_sign), equals, (_, value_is_sign) in zip(
            module_options[::3], module_options[1::3], module_options[2::3], strict=True
        )
    ):
        return "each setting must be NAME=VALUE; a value with blanks or any of = ; / \" ' must be quoted"
    options = {
        name: Secret(value) for (name, _), (value, _) in zip(module_options[::3], module_options[2::3], strict=True)
    }
    return LoginModule(tokens[0][0], options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Return words, quoted or not, and signs; the bool is True for a sign."""
    tokens: list[tuple[str, bool]] = []
    for match in _TOKEN.finditer(text):
        if match["quote"]:
            tokens.append((_ESCAPE.sub(_unescaped, match["quoted"]), False))
        elif match["word"]:
            tokens.append((match["word"], False))
        elif match["sign"]:
            tokens.append((match["sign"], True))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[1] else _CONTROLS.get(match[2], match[2])


def class_of(name: str, names: Iterable[str]) -> str | None:
    """Return the Java class in `names` that `name` means, also with a shading prefix; None if there is none.

    Shading prefixes are, for example, `kafkashaded.` and `shadeddatabricks.`.
    """
    return next((candidate for candidate in names if name == candidate or name.endswith(f".{candidate}")), None)
