"""Check the group when a query starts: live members, and offsets that differ from the checkpoint.

Runs on the driver, once per start of a query.
"""

from __future__ import annotations

import logging

from protocol.admin.groups import describe_group
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import ConfigurationError, KafkaError
from protocol.group.committed_offsets import fetch_offsets
from spark_kafka_source.options.partitions import partition_name
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.remedies import with_option_names

log = logging.getLogger(__name__)

_CHECK_MS = 15_000


def require_no_members(client: Client, group: str, deadline: Deadline) -> None:
    """Raise `ConfigurationError` if the group has live members: Kafka then refuses commits of non-members."""
    try:
        description = describe_group(client, group, deadline.at_most_ms(_CHECK_MS))
    except KafkaError as error:
        # Continue: a refused commit is reported later.
        log.warning("group %s: cannot tell whether it has live members: %s", group, with_option_names(error))
        return
    if description.members:
        members = ", ".join(f"{member.client_id} at {member.client_host}" for member in description.members[:10])
        raise ConfigurationError(
            f"group {group} has {len(description.members)} live member(s) ({members}): Kafka would refuse this query's "
            "commits. Set another kafka.group.id, stop those members, or set commitOffsets=false to read without "
            "committing"
        )


def warn_if_offsets_differ(client: Client, options: SourceOptions, checkpoint: Offsets, deadline: Deadline) -> None:
    """Log once after a restart that the query resumes from the checkpoint, and how the group's offsets differ."""
    group = options.consumer.group_id
    if group is None:
        log.info("resuming from the checkpoint (no kafka.group.id)")
        return
    try:
        committed = fetch_offsets(client, group, checkpoint.ends, deadline.at_most_ms(_CHECK_MS))
    except KafkaError as error:
        log.warning("resuming from the checkpoint; group %s could not be compared: %s", group, with_option_names(error))
        return
    behind, ahead = [], []
    for key, offset in sorted(checkpoint.ends.items()):
        entry = committed.get(key)
        if entry is None or entry.offset < offset:
            behind.append(f"{partition_name(key)}: group {entry.offset if entry else 'none'}, checkpoint {offset}")
        elif entry.offset > offset:
            ahead.append(f"{partition_name(key)}: group {entry.offset}, checkpoint {offset}")
    if ahead:
        log.warning(
            "resuming from the checkpoint, which decides; group %s is ahead of it in %d partition(s) (was it reset, or "
            "used by another query?): %s. It is set back to the checkpoint. To start from the group's offsets, use a "
            "new checkpointLocation",
            group,
            len(ahead),
            "; ".join(ahead[:5]),
        )
    elif behind:
        log.warning(
            "resuming from the checkpoint, which decides; group %s is behind it in %d partition(s), as after a stop "
            "before the last commit: %s",
            group,
            len(behind),
            "; ".join(behind[:5]),
        )
    else:
        log.info("resuming from the checkpoint; group %s has the same offsets", group)
