"""One broker with a listener per security protocol, and listeners that clients must refuse.

Listeners beside those of `LocalKafka(security=...)`: MUTUAL requires client certificates. The certificates of EXPIRED,
EARLY and ELSEWHERE are expired, not yet valid, and of another host. OLD supports TLS 1.1 only. SHORT has no SCRAM, and
SASL sessions of two seconds. ACLs apply to the user bob; all others have every permission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION
from spark_kafka_source.local_kafka.config import version_numbers
from spark_kafka_source.local_kafka.users import acl_settings, sasl_listener_settings
from tests.support.spark_home import BRIEF_LIFE

_HERE = ("127.0.0.1", "localhost")
_DAY = timedelta(days=1)
# A connection can be re-authenticated once a second.
SESSION_MS = 2_000
PASSWORD = "hunter2-of-a-test"
USERS = {"alice": "pa\"ss' w\\rd;1", "bob": "bob-secret", "carol": PASSWORD, "dave": "hunter3-of-a-test"}
_OTHERS = ("MUTUAL", "EXPIRED", "EARLY", "ELSEWHERE", "OLD")


@dataclass(frozen=True)
class SecuredKafka:
    """The running broker. `authority` has signed the certificates of EXPIRED, EARLY and ELSEWHERE only."""

    kafka: LocalKafka
    authority: CertificateAuthority

    def properties(self, listener: str) -> dict[str, str]:
        """Return client properties with all credentials."""
        properties = self.kafka.client_properties(listener)
        if listener in ("EXPIRED", "EARLY", "ELSEWHERE"):
            properties["ssl.truststore.location"] = str(self.authority.certificate)
        if listener == "MUTUAL":
            properties["ssl.keystore.location"] = str(self.client_certificate())
        return properties

    def client_certificate(self) -> Path:
        """Return a client certificate with its key, which the broker accepts."""
        assert self.kafka.certificate_authority is not None
        return self.kafka.certificate_authority.issue("client")


def start(
    folder: Path,
    version: str = DEFAULT_VERSION,
    security: tuple[str, ...] = ("ssl", "sasl_plaintext", "sasl_ssl"),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> SecuredKafka:
    """Start the broker. `settings` are added to those of its listeners."""
    authority = CertificateAuthority(folder, "another CA")
    stores = {
        "expired": authority.issue("expired", _HERE, valid=(-2 * _DAY, -_DAY)),
        "early": authority.issue("early", _HERE, valid=(_DAY, 2 * _DAY)),
        "elsewhere": authority.issue("elsewhere", ["broker-1.example.com", "10.1.2.3"]),
    }
    settings = dict(settings) | {
        f"listener.name.{name}.ssl.keystore.location": str(file) for name, file in stores.items()
    }
    settings |= sasl_listener_settings("SHORT", USERS, ["PLAIN", "OAUTHBEARER"], session_ms=SESSION_MS)
    settings |= acl_settings("alice", "carol", "dave", "CN=client")
    settings |= {
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.old.ssl.enabled.protocols": "TLSv1.1",
        "listener.name.old.ssl.protocol": "TLSv1.1",
    }
    if version_numbers(version) >= (3, 6):
        settings["delegation.token.secret.key"] = "key-of-a-test"
    # Java enables TLS 1.1 only on request.
    allowed = folder / "java.security"
    allowed.write_text("jdk.tls.disabledAlgorithms=\n")
    kafka = LocalKafka(
        version=version,
        security=security,
        users=USERS,
        listeners={**dict.fromkeys(_OTHERS, "SSL"), "SHORT": "SASL_PLAINTEXT"},
        settings=settings,
        jvm_options=[*BRIEF_LIFE, f"-Djava.security.properties={allowed}"],
    )
    return SecuredKafka(kafka, authority)
