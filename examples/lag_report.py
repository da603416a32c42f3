"""Print the groups of a cluster that are behind, in offsets and in seconds, the furthest first; without Spark.

    python examples/lag_report.py BROKERS LIMIT_S

The exit code is 1 if a group is more than LIMIT_S seconds behind: for a scheduler that raises alerts.
"""

from __future__ import annotations

import sys

from protocol import Admin
from spark_kafka_source import lag_of_group


def main(brokers: str, limit_s: str) -> int:
    """Print the report; return the exit code."""
    with Admin(bootstrap_servers=brokers) as admin:
        groups = [listing.group for listing in admin.list_groups()]
    lag_by_group = {group: lag_of_group(brokers, group) for group in groups}
    lags = [
        (lag.seconds_behind or 0.0, lag.offsets_behind, group)
        for group, lag in lag_by_group.items()
        if lag.offsets_behind > 0
    ]
    for seconds, offsets, group in sorted(lags, reverse=True):
        print(f"{seconds:10.1f} s  {offsets:12,} offsets  {group}")
    return int(any(seconds > float(limit_s) for seconds, _, _ in lags))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("stopped")
