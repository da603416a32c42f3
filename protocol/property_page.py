"""The reference of the client's properties as Markdown; a test keeps docs/properties.md equal to this text.

The sources are the table `protocol.properties.PROPERTIES` and the defaults of the dataclasses. Spark's page of options
uses the same tables with the prefix of its options, and its own rules.

    python -m protocol.property_page > docs/properties.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol.config import ClientConfig, ConsumerConfig, ProducerConfig
from protocol.consumer.group_consumer_config import GROUP_PROPERTIES, GroupConsumerConfig
from protocol.properties import PROPERTIES
from protocol.sasl.config import SASL_PROPERTIES, SaslConfig
from protocol.security.tls_config import TLS_PROPERTIES, TLSConfig
from protocol.settings.property_kinds import Effect, Property, Role

_INTRODUCTION = """\
# Client properties

This page is made by `python -m protocol.property_page > docs/properties.md`. It is the reference of `protocol`, the
client without Spark; [options.md](options.md) is that of the Spark format.

Every class takes a dict of these properties, keyword arguments with `_` for `.`, or a shared `Client`:

```python
from protocol import KafkaConsumer

consumer = KafkaConsumer({"bootstrap.servers": "broker-1:9092", "group.id": "etl"}, auto_offset_reset="earliest")
```

* A wrong value is an error, as is a property that is forbidden or not supported yet (below).
* A misspelled property (`grop.id`) is an error that names the right one.
* A property without effect, or one that Kafka does not have, is a warning, logged once."""

_SASL = """\
They apply with `security.protocol` SASL_PLAINTEXT or SASL_SSL. [security.md](security.md) has examples for common
clusters. References `${env:NAME}`, `${file:PATH:KEY}` and `${dir:PATH:FILE}` in a value are resolved when a connection
is opened."""

_TLS = "They apply with `security.protocol` SSL or SASL_SSL: see [security.md](security.md)."

_CONSUMERS = """\
`KafkaConsumer` and `ConsumerGroup` commit as below. `Consumer` reads given partitions from given offsets: it is in no
group, commits nothing, and has no `auto.offset.reset`."""

_INEFFECTIVE = {
    Effect.FORBIDDEN: "Forbidden properties",
    Effect.NOT_YET: "Properties not supported yet",
    Effect.NO_EFFECT: "Properties accepted without effect",
}


def markdown() -> str:
    """Return the page."""
    group_names = {row.name for row in GROUP_PROPERTIES}
    rows = [row for row in PROPERTIES if row.effect is Effect.APPLIES and row.name not in group_names]
    client_rows = [row for row in rows if row.role is Role.CLIENT and row not in (*TLS_PROPERTIES, *SASL_PROPERTIES)]
    consumer_rows = [*(row for row in rows if row.role is Role.CONSUMER), *GROUP_PROPERTIES]
    producer_rows = [row for row in rows if row.role is Role.PRODUCER]
    without_effect = {row.name: (row.effect, row.doc) for row in PROPERTIES if row.effect is not Effect.APPLIES}
    parts = [
        _INTRODUCTION,
        "## All clients",
        property_table(client_rows, defaults(ClientConfig)),
        "## TLS",
        _TLS,
        property_table([row for row in TLS_PROPERTIES if row in rows], defaults(TLSConfig, "ssl_")),
        "## SASL",
        _SASL,
        property_table([row for row in SASL_PROPERTIES if row in rows], defaults(SaslConfig, "sasl_")),
        "## Consumers",
        _CONSUMERS,
        property_table(
            sorted(consumer_rows, key=lambda row: row.name),
            {**defaults(ConsumerConfig), **defaults(GroupConsumerConfig), "group_protocol": "classic, with a group"},
        ),
        "## Producers",
        property_table(producer_rows, defaults(ProducerConfig)),
        *ineffective_properties({name: row for name, row in without_effect.items() if name not in group_names}, "##"),
    ]
    return "\n\n".join(parts)


def defaults(config: type[Any], prefix: str = "") -> dict[str, object]:
    """Return the defaults of a dataclass by field, whose names get a prefix."""
    return {prefix + field.name: field.default for field in dataclasses.fields(config)}


def property_table(rows: Iterable[Property], values: Mapping[str, object]) -> str:
    """Format properties with their meaning, allowed values and default."""
    cells = [(f"`{row.name}`", row.doc, row.kind.allowed, default_text(values.get(row.field))) for row in rows]
    return table(("property", "meaning", "values", "default"), cells)


def ineffective_properties(properties: Mapping[str, tuple[Effect, str]], heading: str) -> list[str]:
    """Format properties that do not apply: a section for each effect, a line for each reason.

    `properties` has the effect and its reason by name, `heading` the `#` signs of the sections.
    """
    parts = []
    for effect, title in _INEFFECTIVE.items():
        names: dict[str, list[str]] = {}
        for name, (own_effect, reason) in sorted(properties.items()):
            if own_effect is effect:
                names.setdefault(reason, []).append(f"`{name}`")
        lines = (f"* {', '.join(of_reason)}: {reason}" for reason, of_reason in names.items())
        parts += [f"{heading} {title}", "\n".join(lines)]
    return parts


def default_text(value: object) -> str:
    """Format a default; "" for None or a required field."""
    if value is None or value is dataclasses.MISSING:
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Format a table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(markdown())
