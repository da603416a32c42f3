"""The options and Kafka's properties as Markdown; a test keeps docs/options.md equal to this text.

The sources are the tables of the parsers, `table.OPTIONS` and `protocol.properties.PROPERTIES`, the defaults of the
dataclasses, and the overrides in `parsing`. Used by `python -m spark_kafka_source.options`.
"""

from __future__ import annotations

import dataclasses

from protocol.base.java_regex import DIFFERENCES
from protocol.config import ClientConfig, ConsumerConfig, ProducerConfig
from protocol.properties import PROPERTIES
from protocol.property_page import default_text, defaults, ineffective_properties, property_table, table
from protocol.sasl.config import SASL_PROPERTIES, SaslConfig
from protocol.security.tls_config import TLS_PROPERTIES, TLSConfig
from protocol.settings.property_kinds import Effect, Role
from spark_kafka_source.options.parsing import FORBIDDEN, SINK_MEANINGS, TRANSACTION_TIMEOUT_MS
from spark_kafka_source.options.stray_options import PREFIX
from spark_kafka_source.options.table import OPTIONS, READ, USE_WORDS, Option, Use

_INTRODUCTION = f"""\
# Options

This page is made by `python -m spark_kafka_source.options > docs/options.md`.

Option names are case-insensitive. `{PREFIX}bootstrap.servers` is always required; reads also require exactly one of
`subscribe`, `subscribePattern` and `assign`.

* A wrong value is an error. So is a property that is forbidden or not supported yet (below).
* An option without effect in a query is a warning, logged once: options of other formats (`mode`, `inferSchema`), those
  of the source in the sink and vice versa, and properties that Kafka does not have.
* A misspelled option or property (`startingOffset`, `{PREFIX}grop.id`) is an error that names the right one. So are
  other names for one (`topics`, `endTimestamp`, `group`) and properties without the prefix `{PREFIX}` (`group.id`).

`df.write.format("pykafka-group")` needs `.mode("append")`. Without it Spark refuses every Python data source
(`UNSUPPORTED_DATA_SOURCE_SAVE_MODE`). Spark also refuses `outputMode("update")`; use [a function for
`foreachBatch`](migrating.md#output-mode-update) instead."""

_FILTERS = """\
### Filters

`where` on `offset`, `partition` or `timestamp` does not narrow a read: Spark filters the rows. To read less, use the
option `filter` ([filters.md](filters.md)), `assign`, or the options of starting and ending offsets and times."""

_RACK = f"""\
`{PREFIX}client.rack` may be `env:NAME`: the rack is the environment variable NAME of each executor."""

_SASL = f"""\
They apply with `{PREFIX}security.protocol` SASL_PLAINTEXT or SASL_SSL. [security.md](security.md) has examples for
common clusters. References `${{env:NAME}}`, `${{file:PATH:KEY}}` and `${{dir:PATH:FILE}}` in a value are resolved by
the process that opens a connection."""

_TLS = f"""\
They apply with `{PREFIX}security.protocol` SSL or SASL_SSL: see [security.md](security.md)."""

_PROPERTIES = f"""\
## Kafka properties

Kafka's names with the prefix `{PREFIX}`. In a source, the properties of clients and consumers apply; in a sink, those
of clients and producers. Properties of the other side are warnings. So are names that Kafka does not have, unless they
misspell a property that applies."""


def markdown() -> str:
    """Return the page."""
    parts = [
        _INTRODUCTION,
        "## Reading",
        _options([row for row in OPTIONS if row.use & READ and row.effect is Effect.APPLIES], queries=True),
        "### Patterns",
        DIFFERENCES,
        _FILTERS,
        "## Writing",
        _options([row for row in OPTIONS if row.use & Use.WRITE and row.effect is Effect.APPLIES], queries=False),
        "## Accepted, without effect",
        table(("option", "reason"), [(f"`{row.name}`", row.doc) for row in OPTIONS if row.effect is Effect.NO_EFFECT]),
        _PROPERTIES,
    ]
    rows = [row for row in PROPERTIES if row.effect is Effect.APPLIES and row.name not in FORBIDDEN]
    of_clients = [row for row in rows if row.role is Role.CLIENT and row not in (*TLS_PROPERTIES, *SASL_PROPERTIES)]
    parts += ["### All clients", property_table(of_clients, defaults(ClientConfig))]
    parts += [
        "### TLS",
        _TLS,
        property_table([row for row in TLS_PROPERTIES if row in rows], defaults(TLSConfig, "ssl_")),
        "### SASL",
        _SASL,
        property_table([row for row in SASL_PROPERTIES if row in rows], defaults(SaslConfig, "sasl_")),
    ]
    of_consumers = [row for row in rows if row.role is Role.CONSUMER]
    parts += ["### Consumers (source)", property_table(of_consumers, defaults(ConsumerConfig)), _RACK]
    of_producers = [
        dataclasses.replace(row, doc=SINK_MEANINGS.get(row.name, row.doc)) for row in rows if row.role is Role.PRODUCER
    ]
    of_sinks = {**defaults(ProducerConfig), "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS, "linger_ms": None}
    parts += ["### Producers (sink)", property_table(of_producers, of_sinks)]
    without_effect = {row.name: (row.effect, row.doc) for row in PROPERTIES if row.effect is not Effect.APPLIES}
    without_effect |= {name: (Effect.FORBIDDEN, reason) for name, reason in FORBIDDEN.items()}
    parts += ineffective_properties(without_effect, "###")
    return "\n\n".join(parts)


def _options(rows: list[Option], *, queries: bool) -> str:
    cells = []
    for row in rows:
        default = row.default_text or default_text(row.default)
        uses = ", ".join(word.split()[0] for use, word in USE_WORDS.items() if use & row.use & READ)
        cells.append((f"`{row.name}`", row.doc, row.kind.allowed, default, *([uses] if queries else [])))
    return table(("option", "meaning", "values", "default", *(["queries"] if queries else [])), cells)
