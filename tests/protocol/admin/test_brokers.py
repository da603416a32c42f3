"""Administration of brokers and their settings, in cases that a single real broker does not show."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import Admin
from protocol.admin.configs import ConfigResource, ConfigResourceType, broker_resource, topic_resource
from protocol.broker_errors import ErrorCode
from protocol.errors import AdminFailed, UnsupportedVersion, UsageError
from protocol.testing import FakeKafka
from protocol.wire.messages.m32_describe_configs import DESCRIBE_CONFIGS
from tests.protocol.admin.test_admin import codes


def test_settings_of_a_type_that_the_broker_does_not_know_name_the_first_version() -> None:
    topic, group = topic_resource("orders"), ConfigResource(ConfigResourceType.GROUP, "etl")
    with FakeKafka() as fake, Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        fake.handlers[DESCRIBE_CONFIGS] = lambda body, version: {
            "results": [
                {
                    "error_code": ErrorCode.INVALID_REQUEST,
                    "error_message": None,
                    "resource_type": row["resource_type"],
                    "resource_name": row["resource_name"],
                    "configs": [],
                }
                for row in body["resources"]
            ]
        }
        with pytest.raises(AdminFailed) as caught:
            admin.describe_configs([topic, group])
    assert codes(caught.value) == dict.fromkeys((topic, group), "INVALID_REQUEST")
    assert str(caught.value.errors[group]).endswith("Kafka has settings of this type of resource since 4.0")
    assert "since" not in str(caught.value.errors[topic])


@pytest.mark.parametrize("operation", ["describe_log_dirs", "describe_configs", "incremental_alter_configs"])
def test_silent_broker_leaves_time_for_the_others(operation: str) -> None:
    resources = {number: broker_resource(number) for number in (1, 2, 3)}
    keys: dict[str, Any] = {
        "describe_log_dirs": list(resources),
        "describe_configs": list(resources.values()),
        "incremental_alter_configs": dict.fromkeys(resources.values(), ()),
    }
    with FakeKafka(3) as fake, Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.describe_cluster()
        fake.silence(1)
        with pytest.raises(AdminFailed) as caught:
            getattr(admin, operation)(keys[operation], timeout_ms=3_000)
    failed, *others = keys[operation]
    assert (list(caught.value.errors), list(caught.value.results)) == ([failed], others)


def test_unknown_broker_is_refused_before_anything_changes() -> None:
    with FakeKafka() as fake, Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        with pytest.raises(UsageError, match="no broker 9"):
            admin.incremental_alter_configs(dict.fromkeys((broker_resource(1), broker_resource(9)), ()))
        assert fake.request_bodies("IncrementalAlterConfigs") == []


def test_features_are_described_after_the_election_of_a_controller() -> None:
    with FakeKafka() as fake, Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.describe_cluster()
        fake.edit_replies("Metadata", lambda body: {**body, "controller_id": -1}, 2)
        assert "group.version" in admin.describe_features()


def test_operation_unsupported_by_the_broker_names_api_and_versions() -> None:
    with (
        FakeKafka(3) as fake,
        Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin,
        pytest.raises(
            UnsupportedVersion, match=r"^the broker \(Kafka .*\) does not support DescribeQuorum \(API key 55\)"
        ),
    ):
        admin.describe_metadata_quorum()
