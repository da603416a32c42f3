"""Resolve `kafka.client.rack=env:NAME`: the rack is the environment variable NAME of the executor.

Runs in tasks: executors of one query may be in different racks.
"""

from __future__ import annotations

import os
from dataclasses import replace

from protocol.config import ConsumerConfig
from protocol.once import warn_once

_FROM_ENVIRONMENT = "env:"


def resolve_client_rack(config: ConsumerConfig) -> ConsumerConfig:
    """Return the configuration with this machine's rack; without one, and with a warning, if the variable is unset."""
    if not config.client_rack.startswith(_FROM_ENVIRONMENT):
        return config
    variable = config.client_rack[len(_FROM_ENVIRONMENT) :]
    rack = os.environ.get(variable, "")
    if not rack:
        warn_once(f"kafka.client.rack is env:{variable}, which is not set here: records are read from their leaders")
    return replace(config, client_rack=rack)
