"""The examples of docs/clouds.md."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from protocol.base.once import deferred_warnings
from protocol.sasl.cloud_identity import AwsIam, AwsWebIdentity, AzureIdentity, AzureImds, GoogleManagedKafka
from protocol.sasl.credentials import TokenEndpoint, credentials, sasl_extensions
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from tests.support.documents import blocks

POOL = {"logicalCluster": "lkc-12345", "identityPoolId": "pool-abcd"}
SOURCES = {
    "event_hubs_vm": AzureImds,
    "event_hubs_user_assigned": AzureImds,
    "event_hubs_azure": AzureIdentity,
    "msk_iam": AwsIam,
    "msk_iam_role": AwsIam,
    "google_identity": GoogleManagedKafka,
    "google_as_in_java": GoogleManagedKafka,
    "confluent_oauth": TokenEndpoint,
    "confluent_on_azure": AzureImds,
    "confluent_on_aws": AwsWebIdentity,
}


def test_options_of_clouds_are_accepted() -> None:
    names: dict[str, dict[str, str]] = {}
    for block in blocks("clouds.md"):
        if "bootstrap.servers" in block.text and "import" not in block.text:
            exec(block.text, names)
    del names["__builtins__"]
    assert names.keys() == SOURCES.keys()
    with deferred_warnings() as warnings:
        for name, options in names.items():
            parsed = parse_source_options({**options, "subscribe": "orders"}, streaming=True)
            assert parse_sink_options({**options, "topic": "orders"})
            assert isinstance(credentials(parsed.client.sasl), SOURCES[name])
            assert sasl_extensions(parsed.client.sasl) == (POOL if name.startswith("confluent") else {})
    assert warnings == []


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


class Credential:
    """As those of azure-identity, and Databricks' provider."""

    def __init__(self, *arguments: str) -> None:
        self.given = arguments

    def get_token(self, scope: str) -> Any:
        assert scope == "https://orders.servicebus.windows.net/.default"
        return type("AccessToken", (), {"token": f"token for {self.given[-1]}", "expires_on": 9_000_000_000})


@pytest.mark.parametrize(
    ("words", "inputs"), [("azure.identity", "/run/secrets/application.pem"), ("databricks", "kafka")]
)
def test_token_functions_of_docs_return_a_token(monkeypatch: pytest.MonkeyPatch, words: str, inputs: str) -> None:
    monkeypatch.setitem(sys.modules, "azure", module("azure"))
    monkeypatch.setitem(sys.modules, "azure.identity", module("azure.identity", CertificateCredential=Credential))
    monkeypatch.setitem(sys.modules, "databricks", module("databricks"))
    provider = module("databricks.service_credentials", getServiceCredentialsProvider=Credential)
    monkeypatch.setitem(sys.modules, "databricks.service_credentials", provider)
    (example,) = (
        block for block in blocks("clouds.md") if "def event_hubs_token" in block.text and words in block.text
    )
    names: dict[str, Any] = {}
    exec(example.text, names)
    assert names["event_hubs_token"]() == (f"token for {inputs}", 9e9)
