"""Errors of `protocol` name Kafka's properties; errors that reach Spark name the option to change."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config import ClientConfig
from protocol.errors import ConnectFailed, Corrupt, DataLoss, DeadlineExceeded, KafkaError, TopicRecreated
from protocol.fetch.log_offsets import Range
from protocol.properties import PROPERTIES
from protocol.security.tls_config import TLS_NAMES
from spark_kafka_source.error_messages import with_option_names, with_remedies
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task import range_reader

ROOT = Path(__file__).parent.parent


def caused(error: KafkaError, cause: Exception) -> KafkaError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KafkaError("raise fetch.max.bytes", settings=("fetch.max.bytes",)), "raise kafka.fetch.max.bytes"),
        (KafkaError("(bootstrap.servers=a:1)", settings=("bootstrap.servers",)), "(kafka.bootstrap.servers=a:1)"),
        (KafkaError("kafka.group.id, or group.id", settings=("group.id",)), "kafka.group.id, or kafka.group.id"),
        (KafkaError("raise poll_timeout_ms", settings=("poll_timeout_ms",)), "raise kafkaConsumer.pollTimeoutMs"),
        (
            KafkaError("a.check.crcs check.crcs.b check.crcs. check.crcs", settings=("check.crcs",)),
            "a.check.crcs check.crcs.b kafka.check.crcs. kafka.check.crcs",
        ),
        (KafkaError("the topic check.crcs is not there"), "the topic check.crcs is not there"),
    ],
    ids=["a property", "with its value", "once only", "no property", "not a part of a name", "not what is no setting"],
)
def test_settings_become_options(error: KafkaError, message: str) -> None:
    assert with_option_names(error) == message
    with pytest.raises(KafkaError) as raised, with_remedies():
        raise error
    assert str(raised.value) == message
    assert with_option_names(raised.value) == message, "once is enough"
    assert str(pickle.loads(pickle.dumps(raised.value))) == message


def test_message_that_repeats_its_cause_names_its_settings_too() -> None:
    unreachable = ConnectFailed("bootstrap.servers=a:1", settings=("bootstrap.servers",))
    late = DeadlineExceeded(f"delivery.timeout.ms; {unreachable}", settings=("delivery.timeout.ms",))
    assert with_option_names(caused(late, unreachable)) == "kafka.delivery.timeout.ms; kafka.bootstrap.servers=a:1"
    assert with_option_names(caused(KafkaError("check.crcs"), OSError())) == "check.crcs"


def test_log_lines_of_protocol_name_options_too() -> None:
    client = PROCESS.client(ClientConfig((("127.0.0.1", 1),)))
    assert client.format_error(KafkaError("another group.id", settings=("group.id",))) == "another kafka.group.id"


# -- what a task does about what is lost ----------------------------------------------------------

LOST, RECREATED = (
    DataLoss("t-0: gone", topic="t", partition=0),
    TopicRecreated("t-0: recreated", topic="t", partition=0),
)
DEFAULTS: dict[str, str] = {}
GOES_ON = {"failOnDataLoss": "false"}


@pytest.mark.parametrize(
    ("options", "loss", "message"),
    [
        (DEFAULTS, LOST, r"t-0: gone. To continue without the lost records, set failOnDataLoss=false$"),
        (
            DEFAULTS,
            RECREATED,
            r"recreated. To continue .*, set onTopicRecreated=earliest \(the default with failOnDataLoss=false\)$",
        ),
        (GOES_ON, LOST, None),
        (GOES_ON, RECREATED, None),
        ({**GOES_ON, "onTopicRecreated": "fail"}, RECREATED, "set onTopicRecreated=earliest"),
        ({**GOES_ON, "onTopicRecreated": "fail"}, LOST, None),
        ({"onTopicRecreated": "earliest"}, RECREATED, None),
        ({"onTopicRecreated": "earliest"}, LOST, "set failOnDataLoss=false"),
    ],
)
def test_options_say_what_is_lost_without_a_failure(
    options: dict[str, str],
    loss: DataLoss,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Consumer:
        def __init__(self, *_: object, **arguments: object) -> None:
            self.given = arguments

        def __iter__(self) -> Iterator[object]:
            again = pickle.loads(pickle.dumps(loss))
            self.given["on_loss"](again, Range("t", 0, 5, 9))  # type: ignore[operator]
            return iter(())

    monkeypatch.setattr(range_reader, "BoundedReader", Consumer)
    settings = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **options}
    reading = range_reader.read_range(parse_source_options(settings, streaming=True), [Range("t", 0, 5, 9)])
    if message is None:
        assert list(reading) == []
        option = "onTopicRecreated=earliest" if loss is RECREATED else "failOnDataLoss=false"
        assert f"{loss} ({option}: 4 offsets are skipped)" in caplog.text
    else:
        with pytest.raises(DataLoss, match=message) as raised:
            list(reading)
        assert str(raised.value).startswith("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] t-0: ")


def test_error_of_unreadable_range_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Consumer:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __iter__(self) -> object:
            raise Corrupt("check.crcs=false reads it as it is", settings=("check.crcs",))

    monkeypatch.setattr(range_reader, "BoundedReader", Consumer)
    options = parse_source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}, streaming=False)
    with pytest.raises(Corrupt, match=r"^kafka\.check\.crcs=false"):
        list(range_reader.read_range(options, [Range("t", 0, 0, 5)]))


# -- no term of Spark in `protocol` ---------------------------------------------------------------


def texts_of_errors() -> Iterator[tuple[str, str, set[str]]]:
    """Yield each call in `protocol`: place, text, and the settings that it names."""
    for path in sorted((ROOT / "protocol").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            # A set of names is not an error text.
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") != "frozenset":
                keys = {key for node_in in ast.walk(node) if isinstance(node_in, ast.Dict) for key in node_in.keys}
                texts = [
                    node_in.value
                    for node_in in ast.walk(node)
                    if isinstance(node_in, ast.Constant) and node_in not in keys
                ]
                settings = [keyword.value for keyword in node.keywords if keyword.arg == "settings"]
                named = {
                    node.value for setting in settings for node in ast.walk(setting) if isinstance(node, ast.Constant)
                }
                if "settings=TLS_NAMES" in text:
                    named |= set(TLS_NAMES)
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield where, " ".join(text for text in texts if isinstance(text, str)), named


def test_protocol_does_not_speak_spark() -> None:
    """Slow: parses each file of the product."""
    words = re.compile(
        r"(?<![\w.])kafka\.[a-z]+\.[a-z]|failOnDataLoss|onTopicRecreated|pollTimeoutMs|\bSpark\b|\boptions?\b"
    )
    wrong = [f"{where}: {text}" for where, text, _ in texts_of_errors() if words.search(text)]
    # Its language is Spark's.
    wrong = [text for text in wrong if not text.startswith("protocol/filters/")]
    assert wrong == []


def test_property_in_the_text_of_an_error_is_one_of_its_settings() -> None:
    """Otherwise Spark's users would see the property instead of the option.

    Spark uses no consumer in groups, no open partition and no schema registry; metrics have descriptions, not errors.
    """
    names = [re.escape(name.name) for name in PROPERTIES if "." in name.name]
    mentioned = re.compile(rf"(?<![\w.])(?:{'|'.join(names)})(?!\w|\.\w)")
    further = (
        *("protocol/properties", "protocol/config", "protocol/security/tls_", "protocol/sasl/"),
        *("protocol/consumer/", "protocol/fetch/partition_fetcher", "protocol/schemas/", "protocol/metrics/"),
    )
    texts = [text for text in texts_of_errors() if not text[0].startswith(further)]
    assert [(where, text) for where, text, named in texts if set(mentioned.findall(text)) - named] == []
    assert len([named for _, _, named in texts if named]) > 5
