"""Kafka's own assignors, in a JVM of their own that compiles `JavaAssignors.java` by way of Spark's Janino."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from protocol.group.assignors.assignor import Assignment
from protocol.group.assignors.consumer_protocol import decode_assignment
from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION
from spark_kafka_source.local_kafka.jars import find_java, kafka_jars
from tests.protocol.group.assignors.random_groups import Group
from tests.spark_home import BRIEF_LIFE

_PROGRAM = Path(__file__).with_name("JavaAssignors.java")


class JavaAssignors:
    def __enter__(self) -> JavaAssignors:
        spark = importlib.util.find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        jars = Path(spark.origin).parent / "jars"
        janino = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
        class_path = ":".join(map(str, [*janino, kafka_jars(DEFAULT_VERSION) / "*"]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        command = [find_java(), *BRIEF_LIFE, "-XX:+UseSerialGC", quiet, "-cp", class_path]
        command += ["org.codehaus.janino.SimpleCompiler", str(_PROGRAM), "JavaAssignors"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # its input ends, so it ends

    def assign(self, group: Group) -> Assignment:
        """What Kafka's assignor of the same name gives each member, sorted."""
        return self.timed(group)[0]

    def timed(self, group: Group) -> tuple[Assignment, float]:
        """And in how many seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(_in_json(group)), file=self._process.stdin, flush=True)
        found = json.loads(self._process.stdout.readline())
        assigned = {name: base64.b64decode(data) for name, data in found["assignments"].items()}
        return {name: sorted(decode_assignment(data)) for name, data in assigned.items()}, found["took_ms"] / 1000


def _in_json(group: Group) -> dict[str, Any]:
    """Members in the order in which Kafka comes to the same result whatever else its order may be.

    That is the newest claims first, so that older ones are found to be so; and not first who has subscribed to nothing.
    """
    members, written = group.members, group.written
    order = sorted(members, key=lambda name: (not members[name].topics, -members[name].generation, name))
    return {
        "assignor": group.assignor.java_class,
        "topics": {name: [sorted(racks) for racks in partitions] for name, partitions in group.topics.items()},
        "members": [
            {
                "member_id": name,
                "instance_id": group.said[name].instance_id,
                "subscription": base64.b64encode(written[name]).decode(),
            }
            for name in order
        ],
    }
