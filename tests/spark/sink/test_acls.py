"""The exactly-once sink with the ACLs of docs/delivery.md only, and the errors without one of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.conftest import topic_factory
from tests.protocol.sasl.acls import BOB, Acl, allow, revoke
from tests.protocol.security.secure_parts import options
from tests.support import read_committed
from tests.support.secured_kafka import SecuredKafka
from tests.support.spark_frames import write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "rights"


@pytest.mark.timeout(300)
def test_exactly_once_sink_needs_exactly_four_acls(spark: SparkSession, secured: SecuredKafka, tmp_path: Path) -> None:
    """Slow: a stream starts and fails without each of the four ACLs."""
    topic = next(factory := topic_factory(secured.kafka))()
    acls = [
        Acl("Write", "TransactionalId", f"{PREFIX}-", prefix=True),
        Acl("Read", "Group", f"{PREFIX}-", prefix=True),
        Acl("Write", "Topic", topic),
        Acl("Read", "Topic", topic),  # the ledger's offsets are of its first partition
    ]

    def write(checkpoint: str) -> None:
        inputs = options(secured.properties("SASL_PLAINTEXT") | BOB | {"default.api.timeout.ms": "10000"})
        inputs |= {"topic": topic, "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": PREFIX}
        rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=2, numPartitions=1).load()
        rows = rows.selectExpr("cast(value as string) as value")
        write_stream(rows, secured.kafka, tmp_path / checkpoint, **inputs)

    for missing in acls:
        further = [acl for acl in acls if acl != missing]
        allow(secured.kafka, further)
        with pytest.raises(StreamingQueryException) as refused:
            write(f"without {missing.operation} on {missing.resource}")
        assert re.search(rf"\(it needs .*\b{missing.operation}\b", str(refused.value))
        assert f" on {missing.resource} {missing.name}" in str(refused.value)
        revoke(secured.kafka, further)
    allow(secured.kafka, acls)
    write("with all of them")
    values = read_committed.by_this_project(secured.kafka.bootstrap_servers, topic)
    assert sorted(value for of_partition in values.values() for value in of_partition) == [b"0", b"1"]
    revoke(secured.kafka, acls)
    for _ in factory:
        pass
