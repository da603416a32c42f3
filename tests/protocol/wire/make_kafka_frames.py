"""Write `kafka_frames.txt`: frames of every API and version, encoded by Kafka's own Java classes.

    python -m tests.protocol.wire.make_kafka_frames 'FOLDER/*'

FOLDER contains the jars of a Kafka that supports this client's newest versions (`libs/` of its distribution); `java` 17
must be on the path. Last written with Kafka 4.4.0. The values are the samples of `kafka_facts`, the same in every run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.protocol.wire.kafka_facts import ALL_VERSIONS, FLAVOURS, fields_of, java_json, sample_of

HERE = Path(__file__).parent


def main(class_path: str) -> None:
    samples = []
    for api, version, kind in ALL_VERSIONS:
        for flavour in FLAVOURS:
            value = java_json(fields_of(api, version, kind), sample_of(api, version, kind, flavour))
            case = {"api": api.name, "key": api.key, "version": version, "kind": kind, "flavour": flavour}
            samples.append({**case, "value": value})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        path.write_text(json.dumps(samples))
        command = ["java", "-cp", class_path, str(HERE / "KafkaFrames.java"), str(path)]
        frames = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    lines = [
        f"{s['api']} {s['version']} {s['kind']} {s['flavour']} {frame}\n"
        for s, frame in zip(samples, frames, strict=True)
    ]
    (HERE / "kafka_frames.txt").write_text("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1])
