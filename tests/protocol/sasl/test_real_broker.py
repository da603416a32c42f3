"""Authentication with a real broker: every mechanism, with correct and wrong credentials."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.cluster.client import COORDINATOR, PRODUCE, Client
from protocol.config import parse_client
from protocol.errors import AuthenticationFailed, ConnectFailed, KafkaError
from spark_kafka_source.cli.pykafka import pykafka
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers, write_properties
from spark_kafka_source.local_kafka.users import MECHANISMS, sasl_properties
from tests.conftest import KAFKA_VERSION
from tests.protocol.sasl.conftest import ClientFactory
from tests.protocol.security.secure_parts import PARTS, create_topic
from tests.support.cloud_endpoints import CloudEndpoint, imds_of_alice, imds_properties
from tests.support.secured_kafka import USERS, SecuredKafka
from tests.support.soak import SOAK

pytestmark = [pytest.mark.soak, pytest.mark.kafka]

PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
# Every mechanism with every listener and every part; `make soak` runs the full product.
EVERY_CELL = list(itertools.product(MECHANISMS, LISTENERS, PARTS))
CELLS = EVERY_CELL if SOAK else EVERY_CELL[:: len(PARTS) - 1]


def token_for(name: str, lifetime_s: int = 60) -> dict[str, str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    settings = f'unsecuredLoginStringClaim_sub="{name}" unsecuredLoginLifetimeSeconds="{lifetime_s}"'
    return {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{module} {settings};"}


def right(mechanism: str) -> dict[str, str]:
    return sasl_properties(mechanism, "alice", USERS["alice"]) if mechanism in PASSWORDS else token_for("alice")


def wrong(mechanism: str) -> dict[str, str]:
    return (
        sasl_properties(mechanism, "alice", "hunter2") if mechanism in PASSWORDS else token_for("alice", lifetime_s=-60)
    )


@pytest.fixture(scope="module", autouse=True)
def _topic(secured: SecuredKafka) -> None:
    create_topic(secured.kafka)


@pytest.mark.parametrize(("mechanism", "listener", "part"), CELLS)
def test_correct_credentials_are_accepted(secured: SecuredKafka, mechanism: str, listener: str, part: str) -> None:
    PARTS[part](secured.properties(listener) | right(mechanism))


@pytest.mark.parametrize(("mechanism", "listener", "part"), CELLS)
def test_wrong_credentials_fail_at_once_without_retry(
    secured: SecuredKafka, mechanism: str, listener: str, part: str
) -> None:
    # A distinct configuration, so that the client is not shared with another test.
    properties = {"client.id": f"{mechanism} {listener} {part}", **wrong(mechanism)}
    before, began_s = failed_logins(secured.kafka), time.monotonic()
    for _ in range(3):
        with pytest.raises(AuthenticationFailed) as refused:
            PARTS[part](secured.properties(listener) | properties)
        assert_explains(refused.value, secured.kafka.address(1, listener), mechanism)
    assert time.monotonic() - began_s < 10
    # At most three: the client for lag or reading is shared and does not retry; the other parts create new ones.
    assert failed_logins(secured.kafka) - before <= 3


def assert_explains(error: AuthenticationFailed, address: str, mechanism: str) -> None:
    message = str(error)
    assert (
        f"{address}: SASL {mechanism} authentication failed: the broker replied SASL_AUTHENTICATION_FAILED" in message
    )
    assert "check the user and the password or token" in message
    assert "hunter2" not in message


@pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (4, 4), reason="brokers compare ids since Kafka 4.4 (KIP-1242)")
@pytest.mark.parametrize("listener", LISTENERS)
def test_broker_that_is_not_the_intended_one_is_refused(secured: SecuredKafka, listener: str) -> None:
    with Client(parse_client(secured.properties(listener) | right("PLAIN"))) as client:
        broker = client.brokers()[1]
        client.connection(broker, PRODUCE, client.deadline())
        with pytest.raises(ConnectFailed, match="this is not broker 2 of cluster"):
            client.connection(replace(broker, node_id=2), COORDINATOR, client.deadline())


def test_librdkafkas_property_names_are_accepted(secured: SecuredKafka) -> None:
    values = {name: value for name, value in secured.properties("SASL_SSL").items() if name != "sasl.jaas.config"}
    with Client(parse_client({**values, "sasl.username": "bob", "sasl.password": USERS["bob"]})) as client:
        assert client.metadata([]).brokers.keys() == {1}


def test_command_line_authenticates_as_kafkas_tools(secured: SecuredKafka, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    write_properties(file, secured.properties("SASL_SSL"))
    listed = CliRunner().invoke(pykafka, ["groups", "list", "--all", "--command-config", str(file)])
    assert (listed.exit_code, listed.stderr) == (0, "")
    write_properties(file, secured.properties("SASL_SSL") | wrong("PLAIN"))
    refused = CliRunner().invoke(pykafka, ["groups", "list", "--command-config", str(file)])
    assert refused.exit_code == 1
    assert "SASL PLAIN authentication failed" in " ".join(refused.stderr.split())
    assert "hunter2" not in refused.output


def test_cloud_identity_authenticates_a_client_and_the_command_line(secured: SecuredKafka, tmp_path: Path) -> None:
    values = {name: value for name, value in secured.properties("SASL_SSL").items() if name != "sasl.jaas.config"}
    file = tmp_path / "admin.properties"
    with CloudEndpoint() as endpoint:
        endpoint.otherwise = imds_of_alice
        values |= imds_properties(endpoint)
        with Client(parse_client(values)) as client:
            assert client.metadata([]).brokers.keys() == {1}
        write_properties(file, values)
        listed = CliRunner().invoke(pykafka, ["groups", "list", "--all", "--command-config", str(file)])
        assert (listed.exit_code, listed.stderr) == (0, "")
        assert len(endpoint.requests) == 2
        assert {request.headers["metadata"] for request in endpoint.requests} == {"true"}


def failed_logins(kafka: LocalKafka) -> int:
    return len(re.findall("Failed authentication with", kafka.log(1).read_text()))


def test_disabled_mechanism_is_named_with_the_enabled_ones(client: ClientFactory) -> None:
    asking = client(sasl_properties("SCRAM-SHA-256", "bob", USERS["bob"]), listener="SHORT")
    with pytest.raises(AuthenticationFailed, match=r"not enabled it, only .OAUTHBEARER, PLAIN.; set sasl\.mechanism"):
        asking.metadata([])


@pytest.mark.parametrize(("listener", "protocol"), [("SASL_PLAINTEXT", "PLAINTEXT"), ("SASL_SSL", "SSL")])
def test_client_without_sasl_gets_a_hint_to_require_it(client: ClientFactory, listener: str, protocol: str) -> None:
    once = {"default.api.timeout.ms": "8000", "retry.backoff.ms": "20000", "retry.backoff.max.ms": "20000"}
    asking = client({"security.protocol": protocol, **once}, listener)
    with pytest.raises(
        KafkaError, match=r"if that listener requires SASL, set security\.protocol to SASL_PLAINTEXT or SASL"
    ):
        asking.metadata([])


def test_refusal_is_final_if_other_brokers_are_down(secured: SecuredKafka, client: ClientFactory) -> None:
    servers = f"127.0.0.1:1,{secured.kafka.address(1, 'SASL_PLAINTEXT')},127.0.0.1:2"
    for _ in range(5):  # the client selects brokers in random order
        began_s = time.monotonic()
        with pytest.raises(AuthenticationFailed):
            client({**wrong("SCRAM-SHA-256"), "bootstrap.servers": servers}).metadata([])
        assert time.monotonic() - began_s < 15
