"""`Admin` on a broker with an authorizer and SASL: ACLs, delegation tokens, and refused operations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import admin as librdkafka

from protocol import Admin
from protocol.admin.acls import AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from protocol.admin.topics import NewTopic
from protocol.admin.users import ScramMechanism, ScramUpsertion, quota_entity
from protocol.errors import AdminFailed, BrokerError
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.local_kafka.users import sasl_properties
from tests.conftest import KAFKA_VERSION
from tests.protocol.sasl.acls import ALICE, BOB
from tests.support.secured_kafka import SecuredKafka
from tests.support.wait_until import wait_until

SINCE_3_6 = pytest.mark.skipif(version_numbers(KAFKA_VERSION) < (3, 6), reason="KRaft has tokens since Kafka 3.6")


def properties_of(secured: SecuredKafka, credentials: dict[str, str]) -> dict[str, str]:
    return {**secured.properties("SASL_PLAINTEXT"), **credentials}


@pytest.fixture
def admin(secured: SecuredKafka) -> Iterator[Admin]:
    with Admin(properties_of(secured, ALICE)) as first:
        yield first


def test_acls_are_created_described_and_deleted_as_by_librdkafka(admin: Admin, secured: SecuredKafka) -> None:
    prefix = f"acl-{uuid.uuid4().hex[:8]}"
    reads = AclBinding(
        ResourceType.TOPIC, prefix, "User:erin", AclOperation.READ, pattern_type=PatternType.PREFIXED, host="127.0.0.1"
    )
    denied = AclBinding(ResourceType.GROUP, prefix, "User:erin", AclOperation.DELETE, AclPermission.DENY)
    admin.create_acls([reads, denied])
    erin = AclFilter(principal="User:erin")
    wait_until(lambda: set(admin.describe_acls(erin)) == {reads, denied})
    matching = AclFilter(ResourceType.TOPIC, f"{prefix}-orders", pattern_type=PatternType.MATCH, principal="User:erin")
    assert admin.describe_acls(matching) == [reads]

    judge = librdkafka.AdminClient({"bootstrap.servers": secured.kafka.bootstrap_servers})
    kinds = librdkafka.ResourceType.ANY, None, librdkafka.ResourcePatternType.ANY
    operations = librdkafka.AclOperation.ANY, librdkafka.AclPermissionType.ANY
    every = librdkafka.AclBindingFilter(*kinds, "User:erin", None, *operations)
    assert {
        (acl.name, acl.resource_pattern_type.name, acl.host, acl.operation.name, acl.permission_type.name)
        for acl in judge.describe_acls(every).result(30)
    } == {(prefix, "PREFIXED", "127.0.0.1", "READ", "ALLOW"), (prefix, "LITERAL", "*", "DELETE", "DENY")}

    delete_acls = admin.delete_acls([erin, AclFilter(principal="User:no-such")])
    assert (set(delete_acls[erin]), delete_acls[AclFilter(principal="User:no-such")]) == ({reads, denied}, [])
    wait_until(lambda: admin.describe_acls(erin) == [])


def test_refused_operation_names_the_missing_acl(secured: SecuredKafka) -> None:
    with Admin(properties_of(secured, BOB)) as bob:
        with pytest.raises(BrokerError, match=r"CLUSTER_AUTHORIZATION_FAILED.*it needs Describe on Cluster"):
            bob.describe_acls()
        with pytest.raises(AdminFailed, match="it needs AlterConfigs on Cluster"):
            bob.alter_client_quotas({quota_entity(user="bob"): {"producer_byte_rate": 1}})
        with pytest.raises(AdminFailed, match="it needs Create on"):
            bob.create_topics([NewTopic(f"t-{uuid.uuid4().hex[:8]}", 1, 1)])


@SINCE_3_6
def test_delegation_token_is_created_used_renewed_and_expired(admin: Admin, secured: SecuredKafka) -> None:
    token = admin.create_delegation_token(renewers=["User:bob"])
    assert (token.owner, token.renewers) == ("User:alice", ("User:bob",))
    assert token.hmac.reveal() not in repr(token)
    wait_until(lambda: token.token_id in {token.token_id for token in admin.describe_delegation_tokens()})
    assert token in admin.describe_delegation_tokens(["User:alice"])
    with Admin(
        {
            **properties_of(secured, ALICE),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{token.token_id}" password="{token.hmac.reveal()}" tokenauth="true";',
        }
    ) as with_token:
        assert with_token.describe_cluster().brokers
        with pytest.raises(BrokerError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
            with_token.create_delegation_token()
    assert admin.renew_delegation_token(token.hmac) >= token.expiry_ms
    assert admin.expire_delegation_token(token.hmac) <= token.max_ms
    wait_until(lambda: token.token_id not in {token.token_id for token in admin.describe_delegation_tokens()})


def test_new_scram_user_can_authenticate(admin: Admin, secured: SecuredKafka) -> None:
    user, password = f"user-{uuid.uuid4().hex[:8]}", "secret-of-a-new-user"
    admin.alter_user_scram_credentials([ScramUpsertion(user, password, ScramMechanism.SCRAM_SHA_512)])
    wait_until(lambda: user in admin.describe_user_scram_credentials())
    with Admin(properties_of(secured, sasl_properties("SCRAM-SHA-512", user, password))) as new:
        assert new.describe_cluster().brokers
