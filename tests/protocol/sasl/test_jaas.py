"""`sasl.jaas.config` has the same meaning as in Kafka's Java client, which the tests run for comparison."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

import pytest

from protocol.errors import ConfigurationError
from protocol.sasl.jaas import parse_jaas
from protocol.settings.secret import Secret
from tests.support.janino import java_command
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"

TEXTS = {
    "as documented": f'{MODULE} required username="alice" password="alice-secret";',
    "single quotes": f"{MODULE} required username='alice' password='a\"b';",
    "no quotes": f"{MODULE} required username=alice password=se$cret!{{}};",
    "escapes": rf'{MODULE} required password="a\"b\\c\td\101\7\477e\x";',
    "a flag in capitals": f"{MODULE} REQUIRED a=b;",
    "lines and comments": f"// who\n{MODULE} /* is it */ required\n  username=alice / the rest\n password=b;",
    "a slash ends a word": f"{MODULE} required password=a/b;\n;",
    "a slash in quotes": f'{MODULE} required keyTab="/etc/kafka.keytab";',
    "an option in quotes": f'{MODULE} required "user name"="a b";',
    "twice the same option": f"{MODULE} required a=b a=c;",
    "letters of the world": f'{MODULE} required username="Ж中\U0001f600" password=é;',
    "control characters": f"{MODULE} required password=a\x7fb;",
    "nothing but the module": f"{MODULE} required;",
    "no semicolon": f"{MODULE} required a=b",
    "two modules": f"{MODULE} required a=b; {MODULE} required a=b;",
    "two semicolons": f"{MODULE} required a=b;;",
    "no flag": f'{MODULE} username="a";',
    "no value": f"{MODULE} required a=;",
    "no name": f"{MODULE} required =b;",
    "a quote that does not end": f'{MODULE} required a="b;\nc=d;',
    "a quote that never ends": f'{MODULE} required a="b;',
    "nothing": "",
    "blanks": "  \n ",
    "only a semicolon": ";",
}


def parsed(text: str) -> str:
    """Return the parsed text in the format of JavaJaas."""
    try:
        module = parse_jaas(Secret(text))
    except ConfigurationError:
        return "refused"
    options = {name: value.reveal() for name, value in module.options.items()}
    order = sorted(options, key=lambda name: name.encode("utf-16-be"))
    return " ".join([coded(module.name), *(f"{coded(name)}={coded(options[name])}" for name in order)])


def coded(text: str) -> str:
    return "." + base64.b64encode(text.encode()).decode().rstrip("=")


def parsed_by_java(texts: list[str]) -> list[str]:
    command = java_command(Path(__file__).with_name("JavaJaas.java"))
    lines = "".join(base64.b64encode(text.encode()).decode() + "\n" for text in texts)
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True)
    return ended.stdout.splitlines()


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    pieces = [MODULE, " required ", *"a=b;\"'\\\n/ é", "//", "/*", "*/", "\\1", "\\n"]
    complete = list(TEXTS.values())
    made = []
    for _ in range(count):
        text = rng.choice(complete)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(pieces) + text[at + rng.randrange(3) :]
        made.append(text)
    return made


@pytest.mark.kafka
def test_texts_are_parsed_as_by_kafka() -> None:
    texts = [*TEXTS.values(), *random_texts(20_000 if SOAK else 2_000)]
    ours, java = [parsed(text) for text in texts], parsed_by_java(texts)
    assert len(java) == len(texts)
    # Kafka 4.2 accepts words of letters only. Later versions accept all characters except signs, as this parser does.
    taken = [triple for triple in zip(texts, ours, java, strict=True) if triple[2] != "refused"]
    assert [triple for triple in taken if triple[1] != triple[2]] == []
    assert 100 < len(taken) < len(java) - 100


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if parsed(text) == "refused"])
def test_invalid_text_is_refused_without_showing_it(text: str) -> None:
    secret = text.replace("b", "hunter2")
    with pytest.raises(ConfigurationError, match=r"sasl.jaas.config is \[hidden\]") as refused:
        parse_jaas(Secret(secret))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", [f"{MODULE} required", f"{MODULE} required a=b"])
def test_missing_semicolon_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"it must end with a semicolon\."):
        parse_jaas(Secret(text))


@pytest.mark.parametrize("text", ["", MODULE, f"{MODULE};", f"{MODULE} a=b;"])
def test_missing_flag_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="begin with the class of a login module and the word required"):
        parse_jaas(Secret(text))


def test_options_are_hidden() -> None:
    assert "alice" not in repr(parse_jaas(Secret(TEXTS["as documented"])))
