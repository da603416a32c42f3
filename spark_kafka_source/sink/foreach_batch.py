"""Write to Kafka from `foreachBatch`, with any output mode.

Spark refuses the output mode `update` for Python sinks; a batch write in `foreachBatch` supports all modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.base.once import deferred_warnings
from protocol.errors import ConfigurationError
from protocol.settings.secret import hide_variables
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.spark_api import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMAT = "pykafka-group"


@hide_variables
def foreach_batch_writer(options: Mapping[str, object]) -> ForeachBatchWriter:
    """Return a function for `foreachBatch` that writes every batch to Kafka.

    At least once, as the sink: a batch that Spark repeats is written again.

    Parameters
    ----------
    options : mapping
        Options of the sink.

    Raises
    ------
    ConfigurationError
        An option is wrong. Raised at once, not with the first batch.

    Examples
    --------
    >>> writer = foreach_batch_writer({...})  # doctest: +SKIP
    >>> counts.writeStream.outputMode("update").foreachBatch(writer).start()  # doctest: +SKIP
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    with deferred_warnings():  # the first batch logs the warnings
        guarantee = parse_sink_options(texts).delivery_guarantee
    if guarantee == "exactly-once":
        raise ConfigurationError(
            "deliveryGuarantee is exactly-once, which foreachBatch does not support: a batch that Spark repeats is "
            'written again. Use writeStream.format("pykafka-group"), or at-least-once.',
            name="deliveryGuarantee",
        )
    return ForeachBatchWriter(tuple(texts.items()))


@dataclass(frozen=True)
class ForeachBatchWriter:
    """Writes a batch. A class of this module, so that the server of a Spark Connect session can unpickle it."""

    # Excluded from the repr, which Spark may log: an option may be a secret.
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch. Runs on the driver, in the thread of the query."""
        activate(batch.sparkSession)  # a new thread has no active session
        batch.write.format(_FORMAT).options(**dict(self.options)).mode("append").save()
