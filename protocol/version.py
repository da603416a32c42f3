"""The version of this package: the only place that says it.

`pyproject.toml` reads it for the wheel, and clients send it to brokers (KIP-511).
"""

from __future__ import annotations

from typing import Final

__version__ = "0.1.0"

# As in ApiVersions. Brokers count clients by both in `kafka.server:type=socket-server-metrics`.
CLIENT_SOFTWARE: Final = {"client_software_name": "spark-kafka-source", "client_software_version": __version__}
