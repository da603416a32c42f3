"""The entry point of `pykafka`; it names the extra to install if a package is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command, or exit with the name of a missing package."""
    try:
        from spark_kafka_source.cli.pykafka import pykafka
        from spark_kafka_source.cli.stop_signals import open_standard_streams

        open_standard_streams()
        pykafka(prog_name="pykafka")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("click", "rich", "tomli"):
            raise
        sys.exit(f"pykafka needs {package}: pip install 'spark-kafka-source[cli]'")


if __name__ == "__main__":
    main()
