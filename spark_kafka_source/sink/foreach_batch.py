"""Writing to Kafka where Spark has no sink for it: from `foreachBatch`, with any output mode.

Spark refuses the output mode `update` for every sink in Python; a batch write in `foreachBatch` may follow any mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import ConfigurationError
from protocol.once import deferred_warnings
from protocol.secret import hide_variables
from spark_kafka_source.options.parsing import parse_sink_options
from spark_kafka_source.spark_api import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMAT = "pykafka-group"


@hide_variables
def foreach_batch_writer(options: Mapping[str, object]) -> ForeachBatchWriter:
    """The function for `foreachBatch` that writes every batch to Kafka; `options` are those of the sink.

        counts.writeStream.outputMode("update").foreachBatch(foreach_batch_writer({...})).start()

    At least once, as the sink itself: a batch that Spark repeats is written again. Raises `ConfigurationError` for
    options that are wrong, at once and not with the first batch.
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    with deferred_warnings():  # the first batch says the warnings
        guarantee = parse_sink_options(texts).delivery_guarantee
    if guarantee == "exactly-once":
        raise ConfigurationError(
            "deliveryGuarantee is exactly-once, which foreachBatch cannot be: a batch that Spark repeats would be "
            'written again. Use writeStream.format("pykafka-group"), or at-least-once.',
            name="deliveryGuarantee",
        )
    return ForeachBatchWriter(tuple(texts.items()))


@dataclass(frozen=True)
class ForeachBatchWriter:
    """Writes a batch. Of this module by name, so that the server of a Spark Connect session can unpickle it."""

    # Not in its repr, which Spark may log: a value may be a secret.
    options: tuple[tuple[str, str], ...] = field(repr=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        activate(batch.sparkSession)  # a new thread has no active session
        batch.write.format(_FORMAT).options(**dict(self.options)).mode("append").save()
