"""The views of `pykafka groups describe`: offsets, members and state, with the columns of Kafka's own tool.

`offsets` also has the lag in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from protocol.admin.groups import GroupDescription
from protocol.cluster.coordinators import group_coordinator
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.cli.connection import Cluster
from spark_kafka_source.cli.rows import Columns, Rows
from spark_kafka_source.lag.of_group import lag_of_partitions
from spark_kafka_source.lag.seconds import SAMPLE_MS, with_seconds
from spark_kafka_source.lag.table import Lag

RowsOf = Callable[[Cluster, GroupDescription], Rows]

_NOBODY = (None, None, None)


def _offsets(cluster: Cluster, description: GroupDescription) -> Rows:
    """Return a row for each partition with a committed offset or an assigned member."""
    owners = {
        key: (member.member_id, member.client_host, member.client_id)
        for member in description.members
        for key in member.assignment
    }
    return [
        (
            *(description.group, row.topic, row.partition),
            *(row.committed, row.end, row.offsets_behind, row.seconds_behind),
            *owners.get((row.topic, row.partition), _NOBODY),
        )
        for row in lag_of(cluster, description)
    ]


def lag_of(cluster: Cluster, description: GroupDescription) -> Lag:
    """Return the lag of each partition with a committed offset or an assigned member."""
    client, deadline, group = cluster.client, cluster.deadline, description.group
    assigned = {key for member in description.members for key in member.assignment}
    committed = fetch_offsets(client, group, None, deadline, require_stable=False)
    offsets = {key: entry.offset for key, entry in committed.items()}
    lag = lag_of_partitions(client, cluster.consumer, {*offsets, *assigned}, offsets, deadline)
    return with_seconds(lag, client, cluster.consumer, min(SAMPLE_MS, deadline.remaining_ms()))


def _members(cluster: Cluster, description: GroupDescription) -> Rows:
    return [
        (
            *(
                description.group,
                group_member.member_id,
                group_member.group_instance_id,
                group_member.client_host,
                group_member.client_id,
            ),
            *(len(group_member.assignment), _listed(group_member.assignment) or None),
        )
        for group_member in sorted(description.members, key=lambda member: member.member_id)
    ]


def _listed(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as `orders:0,1 paid:3`, in the syntax of `--topic`."""
    by_topic = groupby(sorted(partitions), key=lambda key: key[0])
    return " ".join(f"{topic}:{','.join(str(partition) for _, partition in keys)}" for topic, keys in by_topic)


def _state(cluster: Cluster, description: GroupDescription) -> Rows:
    # The client has just used the coordinator, so this sends no request.
    coordinator = cluster.client.coordinator(group_coordinator(description.group), cluster.deadline)
    return [
        (
            *(description.group, str(coordinator), description.type, description.assignor or None),
            *(description.state, len(description.members)),
        )
    ]


VIEWS: dict[str, tuple[Columns, RowsOf]] = {
    "offsets": (
        (
            *("group", "topic", "partition", "current_offset", "log_end_offset", "lag", "lag_seconds"),
            *("consumer_id", "host", "client_id"),
        ),
        _offsets,
    ),
    "members": (
        ("group", "consumer_id", "group_instance_id", "host", "client_id", "partitions", "assignment"),
        _members,
    ),
    "state": (("group", "coordinator", "type", "assignment_strategy", "state", "members"), _state),
}
