"""SASL and TLS of the in-memory cluster, with this client and librdkafka."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

import protocol
from protocol.admin import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from protocol.admin.users import ScramMechanism, ScramUpsertion
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import PRODUCE, Client
from protocol.errors import AuthenticationFailed, ConnectFailed, KafkaError, TransportError
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.sasl import MECHANISMS, Credentials, SaslSession
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from spark_kafka_source.local_kafka.certificates import CertificateAuthority

USERS = {"alice": "alice,secret=1", "bob": "bob-secret"}


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(2, users=USERS) as running:
        running.create_topic("orders", 2)
        yield running


def round_trip(fake: FakeKafka, properties: dict[str, str]) -> list[bytes]:
    with protocol.Producer(properties) as producer:
        producer.send("orders", b"ours", partition=0)
    reference = confluent_kafka.Producer({**librdkafka(properties), "log_level": 0})
    reference.produce("orders", b"theirs", partition=1)
    assert reference.flush(30) == 0
    return sorted(protocol.read(properties, "orders").read_all()["value"].to_pylist())


def librdkafka(properties: dict[str, str]) -> dict[str, str]:
    """Return the same properties by librdkafka's names."""
    names = {"ssl.truststore.location": "ssl.ca.location"}
    return {names.get(name, name): value for name, value in properties.items() if name != "ssl.truststore.type"}


def test_ids_are_compared_after_authentication(fake: FakeKafka) -> None:
    with Client(fake.client_properties("alice", "PLAIN")) as client:
        broker = client.brokers()[1]
        for node_id in (1, 2):
            fake.requests.clear()
            with nullcontext() if node_id == 1 else pytest.raises(ConnectFailed, match="this is not broker 2 of clust"):
                client.connection(replace(broker, node_id=node_id), f"{PRODUCE} {node_id}", client.deadline())
            kinds = [kind for kind, *_ in fake.requests]
            assert kinds == ["ApiVersions", "SaslHandshake", "SaslAuthenticate", "ApiVersions"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", USERS)
def test_clients_authenticate_with_each_mechanism(fake: FakeKafka, user: str, mechanism: str) -> None:
    assert round_trip(fake, fake.client_properties(user, mechanism)) == [b"ours", b"theirs"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("wrong", [{"sasl.password": "wrong"}, {"sasl.username": "nobody"}])
def test_wrong_credentials_are_refused(fake: FakeKafka, mechanism: str, wrong: dict[str, str]) -> None:
    admin = protocol.Admin({**fake.client_properties("alice", mechanism), **wrong})
    with admin, pytest.raises(AuthenticationFailed, match="Authentication failed"):
        admin.list_topics()


def test_unknown_mechanism_is_refused_with_the_known_ones() -> None:
    reply = SaslSession(Credentials(USERS)).handle(SASL_HANDSHAKE, {"mechanism": "GSSAPI"})
    assert reply == {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": MECHANISMS}


def test_client_without_sasl_is_disconnected(fake: FakeKafka) -> None:
    with protocol.Admin(bootstrap_servers=fake.bootstrap_servers) as admin, pytest.raises(TransportError):
        admin.list_topics(timeout_ms=1_000)


def test_changed_scram_credentials_apply_to_new_connections(fake: FakeKafka) -> None:
    with protocol.Admin(fake.client_properties("alice", "PLAIN")) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion("carol", "secret-3", ScramMechanism.SCRAM_SHA_256)])
        assert set(admin.describe_user_scram_credentials()) == {"alice", "bob", "carol"}
    carol = {**fake.client_properties("alice", "SCRAM-SHA-256"), "sasl.username": "carol", "sasl.password": "secret-3"}
    assert round_trip(fake, carol) == [b"ours", b"theirs"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trust(authority: CertificateAuthority) -> dict[str, str]:
    return {"ssl.truststore.location": str(authority.certificate), "ssl.truststore.type": "PEM"}


@pytest.fixture
def context(authority: CertificateAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker", ["127.0.0.1"]))
    return context


class TestTLS:
    @pytest.mark.parametrize("users", [None, USERS])
    def test_clients_speak_tls(
        self, trust: dict[str, str], context: ssl.SSLContext, users: dict[str, str] | None
    ) -> None:
        with FakeKafka(2, users=users, tls=context) as fake:
            fake.create_topic("orders", 2)
            properties = {**fake.client_properties(), **trust}
            assert properties["security.protocol"] == ("SASL_SSL" if users else "SSL")
            assert round_trip(fake, properties) == [b"ours", b"theirs"]
            fake.drop_connections()
            assert round_trip(fake, properties)[:2] == [b"ours", b"ours"]

    def test_client_without_certificate_is_refused(
        self, authority: CertificateAuthority, trust: dict[str, str], context: ssl.SSLContext
    ) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
        with FakeKafka(tls=context) as fake:
            properties = {**fake.client_properties(), **trust}
            with protocol.Admin(properties) as admin, pytest.raises(KafkaError):
                admin.list_topics(timeout_ms=2_000)
            key = {"ssl.keystore.location": str(authority.issue("client")), "ssl.keystore.type": "PEM"}
            with protocol.Admin({**properties, **key}) as admin:
                assert admin.list_topics() == {}

    def test_plaintext_client_is_disconnected(self, context: ssl.SSLContext) -> None:
        with FakeKafka(tls=context) as fake:
            admin = AdminClient({"bootstrap.servers": fake.bootstrap_servers, "log_level": 0})
            with pytest.raises(confluent_kafka.KafkaException):
                admin.list_topics(timeout=2)


class TestACLs:
    @pytest.fixture
    def authorized(self) -> Iterator[FakeKafka]:
        settings = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:alice"}
        with FakeKafka(users=USERS, settings=settings) as fake:
            yield fake

    def test_acls_are_created_described_and_deleted(self, authorized: FakeKafka) -> None:
        read = AclBinding(ResourceType.TOPIC, "orders", "User:bob", AclOperation.READ)
        prefixed = AclBinding(ResourceType.TOPIC, "ord", "User:*", AclOperation.ALL, pattern_type=PatternType.PREFIXED)
        with protocol.Admin(authorized.client_properties("alice")) as admin:
            admin.create_acls([read, prefixed])
            assert set(admin.describe_acls(AclFilter())) == {read, prefixed}
            matching = AclFilter(ResourceType.TOPIC, "orders", pattern_type=PatternType.MATCH)
            assert set(admin.describe_acls(matching)) == {read, prefixed}
            admin.delete_acls([AclFilter(principal="User:bob")])
            assert list(admin.describe_acls(AclFilter())) == [prefixed]

    def test_deny_wins_over_allow(self, authorized: FakeKafka) -> None:
        authorized.create_topic("orders")
        allowed = AclBinding(ResourceType.TOPIC, "*", "User:*", AclOperation.ALL)
        denied = AclBinding(ResourceType.TOPIC, "orders", "User:bob", AclOperation.WRITE, AclPermission.DENY)
        with protocol.Admin(authorized.client_properties("alice")) as admin:
            admin.create_acls([allowed, denied])
        producer = protocol.Producer(authorized.client_properties("bob"))
        with producer, pytest.raises(protocol.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.send_and_wait("orders", b"1")

    def test_only_the_super_user_may_change_acls(self, authorized: FakeKafka) -> None:
        admin = protocol.Admin(authorized.client_properties("bob"))
        with admin, pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            admin.create_acls([AclBinding(ResourceType.TOPIC, "orders", "User:bob", AclOperation.ALL)])

    def test_cluster_without_authorizer_has_no_acls(self, fake: FakeKafka) -> None:
        with protocol.Admin(fake.client_properties()) as admin, pytest.raises(KafkaError, match="SECURITY_DISABLED"):
            admin.describe_acls(AclFilter())

    def test_methods_of_the_cluster_need_no_acl(self, authorized: FakeKafka) -> None:
        authorized.create_topic("orders")
        assert authorized.produce("orders", "1") == [0]


def test_sasl_at_a_listener_without_it_is_refused_at_once() -> None:
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    with FakeKafka() as kafka, pytest.raises(AuthenticationFailed, match="this listener does not use SASL"):
        protocol.Admin({"bootstrap.servers": kafka.bootstrap_servers, **sasl}).list_topics(timeout_ms=4_000)


def test_frame_above_the_limit_of_brokers_closes_the_connection() -> None:
    """As the start of a TLS handshake at a listener without TLS: a size of 369 MB."""
    with FakeKafka() as kafka, socket.create_connection(kafka.addresses[1], timeout=10) as connection:
        connection.sendall(bytes((22, 3, 1, 2, 0)))
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
