"""Kafka's own assignors, in a separate JVM that runs `JavaAssignors.java`."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from protocol.group.assignors.assignor import GroupAssignment
from protocol.group.assignors.subscription_codec import decode_assignment
from tests.protocol.group.assignors.random_groups import Group
from tests.support.janino import java_command

_PROGRAM = Path(__file__).with_name("JavaAssignors.java")


class JavaAssignors:
    def __enter__(self) -> JavaAssignors:
        self._process = subprocess.Popen(
            java_command(_PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()  # closes its input, so that the process ends

    def assign(self, group: Group) -> GroupAssignment:
        """Return the assignment of Kafka's assignor of the same name, sorted."""
        return self.timed(group)[0]

    def timed(self, group: Group) -> tuple[GroupAssignment, float]:
        """Return the assignment, and the time that it took in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(_in_json(group)), file=self._process.stdin, flush=True)
        rows = json.loads(self._process.stdout.readline())
        assigned = {name: base64.b64decode(data) for name, data in rows["assignments"].items()}
        return {name: sorted(decode_assignment(data)) for name, data in assigned.items()}, rows["took_ms"] / 1000


def _in_json(group: Group) -> dict[str, Any]:
    """Sort members so that Kafka's result does not depend on its other orders.

    The newest claims come first, so that Kafka detects the older ones; a member without topics is never first.
    """
    members, written = group.members, group.written
    order = sorted(members, key=lambda name: (not members[name].topics, -members[name].generation, name))
    return {
        "assignor": group.assignor.java_class,
        "topics": {name: [sorted(racks) for racks in partitions] for name, partitions in group.topics.items()},
        "members": [
            {
                "member_id": name,
                "instance_id": group.subscriptions[name].instance_id,
                "subscription": base64.b64encode(written[name]).decode(),
            }
            for name in order
        ],
    }
