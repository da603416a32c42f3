"""A member in a separate process, which can be stopped and killed; it reports its partitions.

`python -m tests.protocol.group.membership.member_process BOOTSTRAP TOPIC PROPERTIES`, where the properties are JSON.
Each printed line is JSON: `owned` are partitions, `lost` is the reason of their loss, `committed` is the result of a
commit of processed offsets. The process commits offset 1 of all owned partitions, ten times a second.
"""

from __future__ import annotations

import json
import math
import sys

from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.errors import KafkaError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from tests.support.wait_until import attempts


def say(**label: object) -> None:
    print(json.dumps(label), flush=True)


def main(bootstrap: str, topic: str, properties: str) -> None:
    client = Client(parse_client({"bootstrap.servers": bootstrap}))
    config = parse_consumer(json.loads(properties))
    membership = Membership(client, config, TopicSubscription(frozenset({topic})))
    read_by: GroupMember | None = None

    def before_revoke(revocation: Revocation) -> None:
        if revocation.lost:
            say(lost=str(revocation.reason))

    for _ in attempts(math.inf, every_s=0.1):
        if membership.rebalance_pending:
            if read_by is not None:
                # Processed offsets of partitions that may be lost: it tries to commit them all the same.
                say(committed=commits(client, str(config.group_id), topic, read_by))
            assignment = membership.poll_rebalance(client.deadline(1_000), before_revoke)
            read_by = assignment.member if assignment.owned else None
            say(owned=sorted(number for _, number in assignment.owned), member=assignment.member.member_id)


def commits(client: Client, group: str, topic: str, member: GroupMember) -> str:
    try:
        commit_offsets(client, group, {(topic, 0): CommittedOffset(1)}, client.deadline(5_000), member)
    except KafkaError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
