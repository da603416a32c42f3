"""Call a function for each record, in a thread pool, in order of keys, with retries and dead letters; without Spark.

    python examples/handle_records.py BROKERS TOPIC GROUP DEAD_LETTERS

Runs until Ctrl-C. `pykafka replay` writes dead letters back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from protocol import Processor


def handle(message: Any) -> None:
    """Handle one record: an exception sends it to the dead letters."""
    order = json.loads(message.value)
    print(message.partition, message.offset, order["id"])


def main(
    brokers: str,
    topic: str,
    group: str,
    dead_letters: str,
    handler: Callable[[Any], None] = handle,
    started: Callable[[Processor], None] = lambda processor: None,
) -> None:
    """Run the job; `started` gets the processor, whose `close` ends it."""
    properties = {"bootstrap.servers": brokers, "group.id": group, "auto.offset.reset": "earliest"}
    processor = Processor(properties, handler, [topic], threads=4, order="key", dead_letter_topic=dead_letters)
    started(processor)
    with processor:
        processor.run()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
