"""`kafka.client.rack` as it is on this machine: `env:NAME` stands for the environment variable NAME of the executor.

Called in tasks, where the answer is: executors of one query may run in several racks, which one option cannot say.
"""

from __future__ import annotations

import os
from dataclasses import replace

from protocol.config import ConsumerConfig
from protocol.once import warn_once

_FROM_ENVIRONMENT = "env:"


def in_this_rack(config: ConsumerConfig) -> ConsumerConfig:
    """`config` with the rack looked up; without a rack, and one warning, where the variable is not set."""
    if not config.client_rack.startswith(_FROM_ENVIRONMENT):
        return config
    variable = config.client_rack[len(_FROM_ENVIRONMENT) :]
    rack = os.environ.get(variable, "")
    if not rack:
        warn_once(f"kafka.client.rack is env:{variable}, which is not set here: records are read from their leaders")
    return replace(config, client_rack=rack)
