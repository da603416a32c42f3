"""Reading of PEM and of Java's stores, and the errors for invalid ones."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from protocol.base.once import deferred_warnings
from protocol.config import ClientConfig, parse_client
from protocol.errors import ConfigurationError
from protocol.net.tls_context import TLSContext, new_context
from protocol.security import java_stores, pem
from protocol.security.stores import read_key_pair, read_trust_store
from protocol.security.tls_config import TLSConfig, is_tls13_suite, openssl_name
from spark_kafka_source.local_kafka.certificates import CertificateAuthority
from spark_kafka_source.local_kafka.jars import find_java
from tests.support.tls_ends import encrypted_key

PASSWORD = "hunter2"
NO_CERTIFICATE = "-----BEGIN CERTIFICATE----- AAAA -----END CERTIFICATE-----"
SECURE = {"bootstrap.servers": "b:1", "security.protocol": "SSL"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def store(authority: CertificateAuthority) -> Path:
    """Write a PKCS12 store with a key, its certificate, and the CA's."""
    own = authority.issue("me").read_bytes()
    key, certificate = serialization.load_pem_private_key(own, None), x509.load_pem_x509_certificate(own)
    trusted = [x509.load_pem_x509_certificate(authority.certificate.read_bytes())]
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    path = authority.folder / "store.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(b"me", key, certificate, trusted, encryption)  # type: ignore[arg-type]
    )
    return path


@pytest.fixture(scope="module")
def jks(store: Path) -> Path:
    path = store.with_suffix(".jks")
    tool = str(Path(find_java()).with_name("keytool"))
    source = ["-srckeystore", str(store), "-srcstorepass", PASSWORD]
    target = ["-destkeystore", str(path), "-deststoretype", "JKS", "-deststorepass", PASSWORD]
    subprocess.run([tool, "-importkeystore", *source, *target], check=True, capture_output=True)
    return path


def tls(**arguments: object) -> TLSConfig:
    return parse_client({**SECURE, **{f"ssl.{name.replace('_', '.')}": value for name, value in arguments.items()}}).tls


class TestPem:
    def test_pem_on_one_line_or_with_escaped_newlines_is_read(self, authority: CertificateAuthority) -> None:
        text = authority.certificate.read_text()
        for written in (text, " ".join(text.split("\n")), text.replace("\n", "\\n"), f"Bag attributes\n{text}\n"):
            assert pem.blocks(written, "CERTIFICATE") == [text]

    def test_blocks_of_the_requested_type_are_returned(self, authority: CertificateAuthority) -> None:
        text = authority.issue("one").read_text()
        assert len(pem.blocks(text, "CERTIFICATE")) == 1
        assert len(pem.blocks(text, "PRIVATE KEY")) == 1
        assert pem.blocks("-----BEGIN CERTIFICATE-----\nhalf", "CERTIFICATE") == []

    def test_encrypted_legacy_key_keeps_its_headers(self) -> None:
        head = "Proc-Type: 4,ENCRYPTED\nDEK-Info: A,B"
        key = f"-----BEGIN RSA PRIVATE KEY-----\n{head}\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
        assert pem.blocks(key, "PRIVATE KEY") == [key]


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
        ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "DHE-RSA-AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("SSL_RSA_WITH_3DES_EDE_CBC_SHA", "DES-CBC3-SHA"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ],
)
def test_cipher_suites_are_translated_to_openssl(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    assert not is_tls13_suite(java)
    assert is_tls13_suite("TLS_AES_256_GCM_SHA384")


class TestJavaStores:
    @pytest.mark.parametrize("password", [PASSWORD, None])
    def test_jks_trust_store_is_read_without_a_password_too(
        self, jks: Path, authority: CertificateAuthority, password: str | None
    ) -> None:
        properties = {} if password is None else {"truststore_password": password}
        assert read_trust_store(tls(truststore_location=str(jks), **properties)) == own_certificate(authority)

    def test_pkcs12_is_read_by_keytool_without_cryptography(
        self, store: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(java_stores, "has_cryptography", lambda: False)
        config = tls(truststore_location=str(store), truststore_password=PASSWORD)
        assert read_trust_store(config) == own_certificate(authority)
        with pytest.raises(ConfigurationError, match=r"without the package cryptography: .*spark-kafka-source\[tls\]"):
            read_key_pair(tls(keystore_location=str(store), keystore_password=PASSWORD))

    @pytest.mark.parametrize("kind", ["jks", "p12"])
    def test_key_is_read_with_its_chain(
        self, store: Path, jks: Path, authority: CertificateAuthority, kind: str
    ) -> None:
        config = tls(keystore_location=str(store.with_suffix(f".{kind}")), keystore_password=PASSWORD)
        pair = read_key_pair(config)
        assert pair is not None
        assert pair.chain.count("BEGIN CERTIFICATE") == 2
        assert pair.chain.endswith(authority.certificate.read_text())
        assert "BEGIN PRIVATE KEY" not in repr(pair)
        new_context(config)

    @pytest.mark.parametrize("kind", ["jks", "p12"])
    @pytest.mark.parametrize("label", ["truststore", "keystore"])
    def test_wrong_password_is_reported_without_showing_it(self, store: Path, jks: Path, kind: str, label: str) -> None:
        config = tls(**{f"{label}_location": str(store.with_suffix(f".{kind}")), f"{label}_password": "wrong-one"})
        with pytest.raises(ConfigurationError, match="password") as raised:
            new_context(config)
        assert "wrong-one" not in str(raised.value)

    def test_jvm_options_in_the_environment_are_not_shown(self, jks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStorePassword=hunter2")
        with pytest.raises(ConfigurationError, match="password was incorrect") as raised:
            read_trust_store(tls(truststore_location=str(jks), truststore_password="wrong-one"))
        assert "hunter2" not in str(raised.value)

    def test_password_may_have_any_characters(self, jks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        copy, password = tmp_path / "copy.jks", "pässword"
        shutil.copy(jks, copy)
        monkeypatch.setenv("LC_ALL", "C.UTF-8")
        tool = str(Path(find_java()).with_name("keytool"))
        command = [tool, "-storepasswd", "-keystore", str(copy), "-storepass", PASSWORD, "-new", password]
        subprocess.run(command, check=True, capture_output=True)
        # The locale of many containers.
        monkeypatch.setenv("LC_ALL", "POSIX")
        assert read_trust_store(tls(truststore_location=str(copy), truststore_password=password))
        for wrong, message in (("a\0b", "password was incorrect"), ("x" * 70_000, "has more than 4095 bytes")):
            with pytest.raises(ConfigurationError, match=message):
                read_trust_store(tls(truststore_location=str(copy), truststore_password=wrong))

    def test_passwords_are_never_in_a_command_or_its_environment(
        self, jks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands: list[tuple[list[str], object]] = []
        run = subprocess.run

        def noted(command: list[str], **options: object) -> object:
            commands.append((command, options["env"]))
            return run(command, **options)  # type: ignore[call-overload]

        monkeypatch.setattr(subprocess, "run", noted)
        new_context(tls(keystore_location=str(jks), keystore_password=PASSWORD, key_password=PASSWORD))
        new_context(tls(truststore_location=str(jks), truststore_password=PASSWORD))
        assert len(commands) == 2
        assert PASSWORD not in repr(commands)

    def test_missing_keytool_is_an_error(self, jks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("JAVA_HOME", "")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigurationError, match="keytool, which is neither in JAVA_HOME nor on the PATH"):
            read_trust_store(tls(truststore_location=str(jks)))

    def test_keytool_that_the_system_refuses_to_start_is_a_configuration_error(
        self, jks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object, **__: object) -> None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        monkeypatch.setattr(subprocess, "run", refused)
        with pytest.raises(ConfigurationError, match="keytool cannot be started: Resource temporarily unavailable"):
            read_trust_store(tls(truststore_location=str(jks)))

    @pytest.mark.parametrize("name", ["jks", "store"])
    def test_missing_keytool_and_cryptography_name_the_extra(
        self, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        location = str(request.getfixturevalue(name))
        monkeypatch.setattr(java_stores, "has_cryptography", lambda: False)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(ConfigurationError, match=r"PKCS12 with the package cryptography .*spark-kafka-source\[tls"):
            read_trust_store(tls(truststore_location=location, truststore_password=PASSWORD))


def own_certificate(authority: CertificateAuthority) -> str:
    """Return the certificate of `me`, without its key; of an entry with a key, only that is trusted."""
    text = (authority.folder / "me.pem").read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


def test_references_to_external_secrets_are_resolved(
    store: Path, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_text(authority.certificate.read_text())
    monkeypatch.setenv("FOLDER", str(authority.folder))
    monkeypatch.setenv("THE_PASSWORD", PASSWORD)
    config = tls(
        truststore_certificates=f"${{dir:{tmp_path}:ca.pem}}",
        keystore_location="${env:FOLDER}/store.p12",
        keystore_password="${env:THE_PASSWORD}",
    )
    context = TLSContext(config)
    first = context.current()
    assert len(first.get_ca_certs()) == 1
    assert context.current() is first
    trusted.write_text(2 * authority.certificate.read_text())
    assert context.current() is not first
    monkeypatch.delenv("FOLDER")
    with pytest.raises(ConfigurationError, match=r"FOLDER. cannot be resolved"):
        TLSContext(config).current()


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"truststore_location": "/no/such"}, "ssl.truststore.location is /no/such, which cannot be read"),
            ({"truststore_certificates": "none"}, "ssl.truststore.certificates has no certificate"),
            ({"keystore_location": "/no/such"}, "ssl.keystore.location is /no/such, which cannot be read"),
            ({"keystore_key": "x", "keystore_certificate_chain": "y"}, "ssl.keystore.key has no blocks"),
            ({"truststore_certificates": NO_CERTIFICATE}, "ssl.truststore.certificates has a certificate that cannot"),
            ({"cipher_suites": "none"}, "ssl.cipher.suites has no suite that this OpenSSL supports"),
            ({"cipher_suites": "TLS_AES_256_GCM_SHA384", "enabled_protocols": "TLSv1.2"}, "has no suite of TLSv1.2"),
        ],
    )
    def test_invalid_store_fails_when_a_connection_is_opened(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as raised:
            new_context(tls(**options))
        assert "ssl.truststore.location" in raised.value.settings

    @pytest.mark.parametrize("key_password", [{}, {"key_password": "wrong-one"}])
    def test_encrypted_key_without_its_password_is_refused(
        self, authority: CertificateAuthority, key_password: dict[str, str]
    ) -> None:
        text = authority.issue("me").read_text()
        properties = {"keystore_key": encrypted_key(text, PASSWORD), "keystore_certificate_chain": text}
        new_context(tls(**properties, key_password=PASSWORD))
        words = r"ssl.keystore.key cannot be used \(it cannot be decrypted\): .* is ssl.key.password correct\?$"
        with pytest.raises(ConfigurationError, match=words):
            new_context(tls(**properties, **key_password))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"truststore_location": "a", "truststore_certificates": "b"},
             "^ssl.truststore.location and ssl.truststore.certificates are both set. Remove one of them"),
            ({"keystore_location": "a", "keystore_key": "b"},
             "^ssl.keystore.location and ssl.keystore.key are both set. Remove one of them"),
            ({"keystore_location": "a", "keystore_certificate_chain": "b"},
             "^ssl.keystore.location and ssl.keystore.certificate.chain are both set. Remove one of"),
            ({"keystore_key": "b"},
             "^ssl.keystore.key is set, but ssl.keystore.certificate.chain is not. Set both or neither"),
            ({"keystore_certificate_chain": "b"},
             "^ssl.keystore.certificate.chain is set, but ssl.keystore.key is not. Set both or neither"),
            ({"enabled_protocols": "TLSv1.3", "protocol": "TLSv1.2"},
             "^ssl.enabled.protocols=TLSv1.3: all are newer than ssl.protocol=TLSv1.2. Remove one of"),
            ({"enabled_protocols": "TLSv1.1"}, "these versions are insecure"),
            ({"enabled_protocols": "TLSv1.2,TLSv1.4,"}, "TLSv1.4 is not a TLS version"),
            ({"enabled_protocols": ","}, "ssl.enabled.protocols is ','; allowed: TLSv1.2,TLSv1.3"),
            ({"endpoint_identification_algorithm": "none"}, "allowed: https, or nothing"),
        ],
    )  # fmt: skip
    def test_invalid_properties_fail_when_they_are_read(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            tls(**options)

    def test_disabled_checks_and_unused_properties_are_warnings(self) -> None:
        with deferred_warnings() as warnings:
            parse_client({**SECURE, "ssl.endpoint.identification.algorithm": ""})
            config = parse_client({"bootstrap.servers": "b:1", "ssl.keystore.password": PASSWORD})
        assert config == ClientConfig((("b", 1),))
        first, second = warnings
        assert first.startswith("ssl.endpoint.identification.algorithm is empty")
        assert second == "ssl.* has no effect: security.protocol is PLAINTEXT"

    def test_store_that_becomes_unreadable_is_a_warning(
        self, authority: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "mine.pem"
        path.write_bytes(authority.issue("mine").read_bytes())
        context = TLSContext(tls(keystore_location=str(path)))
        first = context.current()
        assert context.current() is first
        certificate = authority.issue("newer").read_text()
        with caplog.at_level(logging.WARNING):
            path.write_text(certificate[certificate.index("-----BEGIN CERTIFICATE") :])
            assert context.current() is first
        assert "The previously read certificates are still used" in caplog.text
        path.write_text(certificate)
        assert context.current() is not first
