"""Read Java's stores of certificates and keys (PKCS12, JKS) as PEM.

`cryptography` (the extra `tls`) reads PKCS12. Java's `keytool`, which every Spark machine has, reads JKS. It receives
passwords through pipes, so that neither its command line nor its environment contains them. Without `cryptography` it
reads PKCS12 trust stores, too. Used by `stores`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import ConfigurationError
from protocol.security import pem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

_JKS = b"\xfe\xed\xfe\xed"
_KEYTOOL_TIMEOUT_S = 60
# With a line break, any pipe holds as much without a reader.
_MAX_PASSWORD_BYTES = 4_095
# The JVM prints the options that it takes from the environment; they may contain passwords.
_JVM_NOTICE = "Picked up "
# English, since the output is searched for "Alias name"; and little JIT compilation, for a run of half a second.
_JVM_OPTIONS = ("-J-Duser.language=en", "-J-Dfile.encoding=UTF-8", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")


def trusted_certificates(path: str, data: bytes, password: str | None) -> str:
    """Return all certificates of a trust store as PEM.

    `path`, `data`: the store's path and content.
    `password`: the store's password; optional for JKS.
    Raises `ConfigurationError`: the store cannot be read.
    """
    if not data.startswith(_JKS) and has_cryptography():
        certificates = _pkcs12(path, data, password)
        own = [certificates.cert] if certificates.cert else []
        return "".join(_pem(cert.certificate) for cert in [*own, *certificates.additional_certs])
    # Without a password, keytool prompts for one and accepts an empty line.
    listed = _keytool(["-list", "-rfc", "-keystore", path], {"-storepass": password}, answers="\n")
    # As in Java, an entry with a key adds only its own certificate to the trusted ones, not those of its CAs.
    entries = listed.split("Alias name: ")[1:]
    return "".join(block for entry in entries for block in pem.blocks(entry, "CERTIFICATE")[:1])


def key_and_chain(path: str, data: bytes, password: str | None, key_password: str | None) -> tuple[str, str]:
    """Return the (first) key of a store, and its certificate followed by those of its CAs, as PEM.

    `path`, `data`: the store's path and content.
    `password`, `key_password`: passwords of the store and of the key in it.
    Raises `ConfigurationError`: the store cannot be read, has no key, or the package `cryptography` is missing.
    """
    if not has_cryptography():
        raise ConfigurationError(
            f"the key store {path} cannot be read without the package cryptography: install it wherever connections "
            "are opened (pip install 'spark-kafka-source[tls]'), or give the key and its certificates as PEM"
        )
    if data.startswith(_JKS):
        data, password = _as_pkcs12(path, password, key_password)
    certificates = _pkcs12(path, data, password)
    if certificates.key is None or certificates.cert is None:
        raise ConfigurationError(f"the key store {path} has no key with a certificate")
    from cryptography.hazmat.primitives import serialization

    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = certificates.key.private_bytes(serialization.Encoding.PEM, form, plain).decode()
    certificates_of_chain = [cert.certificate for cert in certificates.additional_certs]
    return key, "".join(map(_pem, _chain(certificates.cert.certificate, certificates_of_chain)))


def has_cryptography() -> bool:
    """Return True if the package `cryptography` is installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


def _pkcs12(path: str, data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        # The message of `error` is not trusted to hide secrets.
        raise ConfigurationError(
            f"the store {path} cannot be read: its password is wrong, it is not a key store, or the package "
            "cryptography does not support a certificate in it"
        ) from error


def _chain(first: Certificate, candidates: list[Certificate]) -> list[Certificate]:
    """Return a certificate, its CA's, and so on."""
    certificates, by_subject = [first], {certificate.subject: certificate for certificate in candidates}
    while (issuer := by_subject.pop(certificates[-1].issuer, None)) is not None and issuer != certificates[-1]:
        certificates.append(issuer)
    return certificates


def _pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _as_pkcs12(path: str, password: str | None, key_password: str | None) -> tuple[bytes, str]:
    """Copy a JKS store to PKCS12 under a random password; the file exists briefly, readable by this user only."""
    own = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "store.p12")
        _keytool(
            ["-importkeystore", "-srckeystore", path, "-destkeystore", str(copy), "-deststoretype", "PKCS12"],
            {"-srcstorepass": password, "-deststorepass": own},
            # keytool prompts for the key's password if it differs from the store's.
            answers=f"{key_password or ''}\n",
        )
        return copy.read_bytes(), own


def _keytool(arguments: list[str], passwords: Mapping[str, str | None], *, answers: str) -> str:
    """Run keytool and return its output; `passwords` by option. Raises `ConfigurationError`."""
    home = os.environ.get("JAVA_HOME")
    tool = shutil.which("keytool", path=f"{home}/bin" if home else None)
    if tool is None:
        raise ConfigurationError(
            "the store needs Java's keytool, which is neither in JAVA_HOME nor on the PATH. Use PEM, or PKCS12 with "
            "the package cryptography (pip install 'spark-kafka-source[tls]')"
        )
    # Java decodes its input by the locale, which is often ASCII in containers.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    with _pipes([text for text in passwords.values() if text is not None]) as pipes:
        options = [f"{option}:file" for option, text in passwords.items() if text is not None]
        words = [word for option, pipe in zip(options, pipes, strict=True) for word in (option, f"/dev/fd/{pipe}")]
        try:
            ended = subprocess.run(
                [tool, *_JVM_OPTIONS, *arguments, *words],
                env=environment,
                pass_fds=pipes,
                input=answers,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_KEYTOOL_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(f"keytool did not finish within {_KEYTOOL_TIMEOUT_S} s") from error
        except OSError as error:  # such as a fork that the system refuses
            raise ConfigurationError(f"{tool} cannot be started: {error.strerror}") from error
    if ended.returncode != 0:
        lines = (ended.stdout + ended.stderr).splitlines()
        output = " ".join(" ".join(line for line in lines if not line.startswith(_JVM_NOTICE)).split())
        raise ConfigurationError(f"keytool cannot read a store: {output[-300:]}")
    return ended.stdout


@contextmanager
def _pipes(texts: list[str]) -> Iterator[list[int]]:
    """Yield, for each text, the read end of a pipe that contains it as a line. Raises `ConfigurationError`."""
    ends: list[int] = []
    try:
        for text in texts:
            password = text.encode()
            if len(password) > _MAX_PASSWORD_BYTES:
                raise ConfigurationError(f"the password of a store has more than {_MAX_PASSWORD_BYTES} bytes")
            to_read, to_write = os.pipe()
            ends.append(to_read)
            with os.fdopen(to_write, "wb") as pipe:
                pipe.write(password + b"\n")
        yield ends
    finally:
        for end in ends:
            os.close(end)
