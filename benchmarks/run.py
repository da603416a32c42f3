"""Run all benchmarks (`make bench`): start a Kafka, fill topics, run every section, print a table and save JSON.

    python -m benchmarks.run                         all sections, about twenty minutes
    python -m benchmarks.run --quick                 all sections with few records
    python -m benchmarks.run source --only pykafka   one section, one contestant
    make bench BENCH="source --rounds 6"             the same command, with make

Each section runs in fresh processes, one after the other. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import bench_producer, clients, report
from benchmarks.job import EVENTS, Figure, Job, Topic, run_section, say
from benchmarks.topics import fill
from spark_kafka_source.local_kafka import LocalKafka

_MODULES = {
    "client": "clients",
    "source": "source",
    "producer": "bench_producer",
    "sink": "sink",
    "delivery": "delivery",
    "trigger": "triggers",
    "memory": "memory",
    "partitions": "many_partitions",
    "events": "events",
    "ceiling": "ceiling",
    "first-batch": "first_batch",
    "first-test": "first_test",
    "tuning": "tuning",
    "decoding": "decoding",
    "decoding-protobuf": "decoding_protobuf",
    "decoding-memory": "decoding_memory",
    "decoding-json": "decoding_json",
    "filter": "filters",
    "metrics": "metrics",
    "processing": "processing",
    "source-sasl-ssl": "source",
    "sink-sasl-ssl": "sink",
}
SECTIONS = (
    *("client", "source", "producer", "sink", "delivery", "trigger", "source-sasl-ssl", "sink-sasl-ssl"),
    *("events", "ceiling", "first-batch"),
)
_SECURED = "SASL_SSL"
# Sections with a Kafka of three brokers; the others have one.
_ON_THREE_BROKERS = {"events", "ceiling", "first-batch", "tuning"}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    about: dict[str, Any] = {"command": shlex.join(["python", "-m", "benchmarks.run", *(arguments or sys.argv[1:])])}
    about["machine"] = report.machine()
    figures: list[Figure] = []
    for brokers in (1, 3):
        sections = [section for section in options.sections if (section in _ON_THREE_BROKERS) == (brokers == 3)]
        if sections:
            with _kafka(brokers, options.bootstrap_servers) as (bootstrap_servers, secured):
                job = _job(options, bootstrap_servers)
                for section in sections:
                    say(f"{section}:")
                    over = secured if section.endswith("-sasl-ssl") else {}
                    figures += _run(section, replace(job, secured=over), options)
    print(f"\n{about['command']}\n{json.dumps(about['machine'])}\n\n{report.table(figures)}")
    if options.results:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(report.as_json(figures, about), indent=1) + "\n")
        print(f"\nresults: {options.results}")


def _run(section: str, job: Job, options: argparse.Namespace) -> list[Figure]:
    if section == "producer":
        return bench_producer.measure_all(job, options.sink_records, options.compression.split(","))
    job = replace(job, topics=_topics(section, options))
    for topic in job.topics:
        fill(job.bootstrap_servers, topic)
    if section == "client":
        names = [name for name in clients.NAMES if job.wants(name)]
        return [figure for name in names for figure in run_section("clients", job, name)]
    return [replace(figure, section=section) for figure in run_section(_MODULES[section], job)]


def _topics(section: str, options: argparse.Namespace) -> tuple[Topic, ...]:
    """Return the topics that a section reads."""
    if section in ("client", "source", "source-sasl-ssl"):
        return tuple(
            Topic(f"bench-{size}-{codec}-{records}", records, size, codec, options.partitions, options.batch_bytes)
            for size, records in ((100, options.small_records), (1024, options.large_records))
            for codec in options.compression.split(",")
            if records
        )
    if section in ("metrics", "processing"):
        return (Topic(f"bench-{section}", options.small_records, 100, "none", options.partitions, options.batch_bytes),)
    if section == "memory":
        return (Topic("bench-memory", options.memory_records, 100, "lz4", options.partitions, options.batch_bytes),)
    events = tuple(
        Topic(
            f"bench-events-{records}", records, 110, "lz4", options.partitions, 1_000_000, linger_ms=50, values=EVENTS
        )
        for records in options.event_records
    )
    # The other sections need only the middle one.
    middle = events[len(events) // 2 :][:1]
    return {"events": events, "ceiling": middle, "tuning": middle}.get(section, ())


@contextmanager
def _kafka(brokers: int, bootstrap_servers: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the addresses, and the options for the listener with TLS and SASL; none for a given Kafka."""
    if bootstrap_servers:
        yield bootstrap_servers, {}
        return
    # More memory than in tests, so that the broker does not limit the result.
    with LocalKafka(brokers, security=_SECURED, jvm_options=["-Xmx1g"]) as kafka:
        properties = kafka.client_properties(_SECURED)
        yield kafka.bootstrap_servers, {f"kafka.{name}": value for name, value in properties.items()}


def _job(options: argparse.Namespace, bootstrap_servers: str) -> Job:
    return Job(
        bootstrap_servers=bootstrap_servers,
        rounds=options.rounds,
        warm_up_rounds=options.warm_up_rounds,
        micro_batches=options.micro_batches,
        sink_records=options.sink_records,
        sink_value_bytes=options.sink_value_bytes,
        trigger_batches=options.trigger_batches,
        records_per_second=options.records_per_second,
        spark_conf=dict(pair.split("=", 1) for pair in options.spark_conf),
        options=dict(pair.split("=", 1) for pair in options.option),
        only=tuple(options.only),
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    quick = "--quick" in (arguments or sys.argv[1:])

    def size(name: str, default: int, when_quick: int, text: str) -> None:
        chosen = when_quick if quick else default
        parser.add_argument(name, type=int, default=chosen, help=f"{text} ({default:,}; quick: {when_quick:,})")

    parser.add_argument(
        "sections", nargs="*", default=[], help=f"of {', '.join(_MODULES)}; without: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="few records: to see that it works, not for figures")
    size("--small-records", 2_000_000, 120_000, "records of 100 bytes in each topic")
    size("--large-records", 1_000_000, 30_000, "records of 1 KiB in each topic")
    size("--sink-records", 1_000_000, 60_000, "records that each write of the sink makes")
    size("--sink-value-bytes", 100, 100, "and how long their values are")
    size("--rounds", 3, 1, "how often each contestant has its turn, after the warm-up")
    size("--warm-up-rounds", 3, 1, "turns of each contestant in a fresh session that are not measured")
    size("--micro-batches", 5, 3, "micro-batches of each streaming query")
    size("--trigger-batches", 60, 10, "small micro-batches of each connector")
    size("--records-per-second", 200, 200, "produced meanwhile")
    size("--memory-records", 5_000_000, 300_000, "backlog of the memory section")
    size("--partitions", 6, 6, "of each topic")
    size("--batch-bytes", 16_384, 16_384, "record batches of the producer that fills the topics (Java's default)")
    parser.add_argument(
        "--event-records",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[100_000] if quick else [1_000_000, 3_000_000, 6_000_000],
        help="records of each topic of events (1,000,000,3,000,000,6,000,000; quick: 100,000)",
    )
    parser.add_argument("--compression", default="none,lz4", help="codecs of the topics (none,lz4)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only contestants named like this")
    parser.add_argument("--memory", action="store_true", help="also the memory section")
    parser.add_argument("--bootstrap-servers", help="use this Kafka; topics filled before are used again")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="KEY=VALUE", help="of the Spark session")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of this project's source")
    parser.add_argument("--results", type=Path, default=None, help="write everything to this JSON file")
    options = parser.parse_args(arguments)
    options.sections = options.sections or list(SECTIONS)
    if options.memory and "memory" not in options.sections:
        options.sections.append("memory")
    if unknown := set(options.sections) - set(_MODULES):
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(_MODULES)}")
    return options


if __name__ == "__main__":
    main()
