"""Kafka's console consumer as a member of a group."""

from __future__ import annotations

import subprocess

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import tool_class, tool_command

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def console_command(kafka: LocalKafka, topic: str, group: str, **properties: str) -> list[str]:
    """Return the command. `properties` are consumer properties with `_` for `.`."""
    settings = {"auto_commit_interval_ms": "100", "heartbeat_interval_ms": "100", **properties}
    if settings.get("group_protocol") == "consumer":
        del settings["heartbeat_interval_ms"]  # brokers set it in this protocol, and Java rejects the property
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--group", group)
    options = [f"--consumer-property={name.replace('_', '.')}={value}" for name, value in settings.items()]
    tool = tool_class(kafka.cluster_config, CONSOLE, "kafka.tools.ConsoleConsumer")
    return tool_command(kafka.cluster_config, tool, *where, "--from-beginning", *options)


class ConsoleConsumer:
    """A running group member. `close` stops it and returns the received values that begin with a digit."""

    def __init__(self, kafka: LocalKafka, topic: str, group: str, **properties: str) -> None:
        """Start the consumer with the arguments of `console_command`."""
        command = console_command(kafka, topic, group, **properties)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def close(self) -> list[bytes]:
        self._process.terminate()
        output, _ = self._process.communicate(timeout=60)
        return [line for line in output.splitlines() if line[:1].isdigit()]
