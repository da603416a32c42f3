"""GSSAPI (RFC 4752): Kerberos with the package `gssapi` and the system's library, without a security layer.

TLS provides encryption instead.
"""

from __future__ import annotations

import os
from typing import Any

from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.sasl.credentials import Kerberos
from protocol.sasl.exchange import Exchange

_NO_LAYER = 1
_KRB5_KDC_UNREACH = -1765328228


def kerberos(credentials: Kerberos, host: str) -> Exchange:
    """Authenticate with Kerberos.

    Parameters
    ----------
    credentials
        The credentials.
    host
        The broker's host name, as in its principal.

    Raises
    ------
    ConfigurationError
        The package is missing, or the keytab cannot be read.
    ConnectFailed
        No KDC is reachable.
    AuthenticationFailed
        Kerberos or the broker refused.
    """
    try:
        import gssapi
    except ImportError as error:
        raise ConfigurationError(
            "sasl.mechanism is GSSAPI, which needs the package gssapi and the system's Kerberos library: "
            "pip install 'spark-kafka-source[kerberos]'.",
            settings=("sasl.mechanism",),
        ) from error
    try:
        broker = gssapi.Name(f"{credentials.service_name}@{host}", gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(
            name=broker, creds=_credentials(gssapi, credentials), usage="initiate", mech=gssapi.MechType.kerberos
        )
        ticket = context.step()
        while not context.complete:
            ticket = context.step((yield ticket or b""))
        offered = context.unwrap((yield ticket or b"")).message
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise AuthenticationFailed("the broker requires a Kerberos security layer, which is not supported; use TLS")
        yield context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message
    except gssapi.exceptions.GSSError as error:
        no_kdc = (error.min_code - _KRB5_KDC_UNREACH) % 2**32 == 0  # retriable
        raise (ConnectFailed if no_kdc else AuthenticationFailed)(f"Kerberos error: {error.gen_message()}") from error


def _credentials(gssapi: Any, credentials: Kerberos) -> Any:
    """Return credentials of the keytab, or of the principal's tickets; None for any tickets of the process."""
    if credentials.principal is None and credentials.keytab is None:
        return None
    name = gssapi.Name(credentials.principal, gssapi.NameType.kerberos_principal) if credentials.principal else None
    if credentials.keytab and not os.access(credentials.keytab.removeprefix("FILE:"), os.R_OK):
        raise ConfigurationError(
            f"sasl.jaas.config: its keyTab, {credentials.keytab}, cannot be read in this process.",
            settings=("sasl.jaas.config",),
        )
    # Tickets of the keytab are stored in memory: the tickets of another principal are not used, and not overwritten.
    tickets = f"MEMORY:{credentials.principal} by {credentials.keytab}"
    store = {"client_keytab": credentials.keytab, "ccache": tickets} if credentials.keytab else None
    return gssapi.Credentials(name=name, usage="initiate", store=store)
