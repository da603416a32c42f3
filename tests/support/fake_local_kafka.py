"""The in-memory cluster with the methods of `LocalKafka`, so that tests of a real broker can run on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from protocol.testing import FakeKafka

_OF_REAL_BROKERS = {"_config", "data_folder", "describe_group", "log", "run_tool"}


class FakeLocalKafka(FakeKafka):
    """A stand-in for `LocalKafka`, without Java, files and tools: a test that needs them is skipped."""

    version = "4.2.0"

    def __getattr__(self, name: str) -> Any:
        if name in _OF_REAL_BROKERS:
            pytest.skip(f"the in-memory cluster has no {name}")
        raise AttributeError(name)

    @property
    def broker_ids(self) -> list[int]:
        return list(self.brokers)

    def pid(self, broker_id: int) -> int | None:
        return 1 if self.brokers[broker_id].running else None

    def kill(self, broker_id: int) -> None:
        self.stop(broker_id)

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            super().start(broker_id)

    def pause(self, broker_id: int) -> None:
        self.silence(broker_id)

    def resume(self, broker_id: int) -> None:
        self.silence(broker_id, False)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        settings: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        copies = -1 if replication_factor is None else replication_factor
        config = settings or arguments.pop("config", None)
        return super().create_topic(name, partitions, copies, config=config, **arguments)
