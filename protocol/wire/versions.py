"""Choose the version of an API from the client's range, the broker's range and the requirements of a call.

A pure function. Called by `connection` before each request, with the ranges of the broker's ApiVersions response.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import UnsupportedVersion
from protocol.wire.schema import Api


def choose(api: Api, broker: Mapping[int, tuple[int, int]], at_least: int = 0, at_most: int | None = None) -> int:
    """Return the highest version that satisfies the client, the broker and the call.

    Parameters
    ----------
    api
        The API to call.
    broker
        API key to the (lowest, highest) version that the broker supports.
    at_least, at_most
        Range that the call requires; ListOffsets, for example, needs v7 for the offset of the maximum timestamp.

    Raises
    ------
    UnsupportedVersion
        No version satisfies all; the message names the ranges.
    """
    ours = f"this client supports v{api.first} to v{api.last}"
    needs = f"this call needs v{at_least} or later" if at_least > api.first else ""
    needs += f"{' and' if needs else 'this call needs'} v{at_most} or earlier" if at_most is not None else ""
    if api.key not in broker:
        raise UnsupportedVersion(f"the broker does not support {api.name} (API key {api.key}); {ours}", api=api.name)
    lowest, highest = broker[api.key]
    floor = max(api.first, lowest, at_least)
    ceiling = min(api.last, highest, api.last if at_most is None else at_most)
    if floor > ceiling:
        message = f"no common version of {api.name}: {ours}, the broker v{lowest} to v{highest}"
        raise UnsupportedVersion(f"{message}; {needs}" if needs else message, api=api.name)
    return ceiling
