"""Copy a topic to another cluster as Arrow data, without Spark, batch by batch in bounded memory.

python examples/arrow_copy.py BROKERS SOURCE OTHER_BROKERS TARGET
"""

from __future__ import annotations

import sys

import protocol


def main(brokers: str, source: str, other_brokers: str, target: str) -> int:
    """Run the job; return the number of records."""
    records = protocol.read({"bootstrap.servers": brokers}, source, columns=["key", "value", "headers", "timestamp_ms"])
    written = protocol.write({"bootstrap.servers": other_brokers, "compression.type": "lz4"}, target, records)
    return sum(partition.count for partition in written.values())


if __name__ == "__main__":
    try:
        print(main(*sys.argv[1:]), "records were copied")
    except KeyboardInterrupt:
        sys.exit("stopped; a part of the records is in the target")
