"""A query whose ACL for a topic is removed reports an authorisation error, not a deleted topic; no row is repeated."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, topic_factory
from tests.protocol.sasl.acls import BOB, Acl, allow, revoke
from tests.protocol.security.secure_parts import options
from tests.spark.driver.topic_admin import produce
from tests.support.secured_kafka import SecuredKafka
from tests.support.soak import variants
from tests.support.spark_frames import stream, streamed

pytestmark = pytest.mark.soak


@pytest.mark.timeout(300)
@variants(
    ("how", "fail_on_data_loss"),
    list(product(["subscribePattern", "subscribe", "assign", "classic", "consumer"], ["true", "false"])),
    *(("subscribePattern", "true"), ("consumer", "false")),
)
def test_lost_acl_fails_query_and_restored_one_resumes_at_checkpoint(
    how: str, fail_on_data_loss: str, spark: SparkSession, secured: SecuredKafka, tmp_path: Path
) -> None:
    """Slow: three queries on one checkpoint: with the ACL, without it, and with it again."""
    if how == "consumer" and version_numbers(KAFKA_VERSION) < (4, 0):
        pytest.skip("the consumer protocol begins with Kafka 4.0")
    prefix = f"acl{uuid.uuid4().hex[:6]}"
    create = next(factory := topic_factory(secured.kafka))
    first, second = create(prefix=prefix), create(prefix=prefix)
    acls = [Acl("Read", "Group", prefix), Acl("Read", "Topic", first), Acl("Read", "Topic", second)]
    subscription = {"subscribePattern": f"^{prefix}-.*"}
    if how in ("classic", "consumer"):
        subscription["kafka.group.protocol"] = how
    elif how != "subscribePattern":
        names = {"subscribe": f"{first},{second}", "assign": f'{{"{first}": [0], "{second}": [0]}}'}
        subscription = {how: names[how]}
    inputs = options(secured.properties("SASL_PLAINTEXT") | BOB) | subscription
    inputs |= {"failOnDataLoss": fail_on_data_loss, "kafka.group.id": prefix}

    def run() -> Counter[str]:
        rows = stream(spark, secured.kafka, **inputs).select("topic")
        return Counter(row.topic for row in streamed(rows, tmp_path))

    allow(secured.kafka, acls)
    for topic in (first, second):
        produce(secured.kafka, topic, "first", 3)
    assert run() == {first: 3, second: 3}
    for topic in (first, second):
        produce(secured.kafka, topic, "next", 2)
    revoke(secured.kafka, acls[2:])
    with pytest.raises(StreamingQueryException) as refused:
        run()
    message = str(refused.value)
    assert re.search(rf"TOPIC_AUTHORIZATION_FAILED.*it needs (Describe|Read) on Topic {second}\b", message), message
    assert "was deleted (or" not in message
    assert "failOnDataLoss" not in message
    allow(secured.kafka, acls[2:])
    assert run() == {first: 2, second: 2}
    revoke(secured.kafka, acls)
    for _ in factory:
        pass
