"""Whom a caller from another machine trusts.

A cluster's CA is known by its fingerprint. Its certificate is asked of whoever answers at the
address, and nothing else is sent there before the fingerprint has been held against it.
"""

import hashlib
import ssl
from pathlib import Path
from typing import Any

import httpx

from rota.errors import AuthError, InputError, UnreachableError

PIN = "sha256:"
TIMEOUT_S = 30.0


def fingerprint_of(certificate: str) -> str:
    """The fingerprint of a certificate given as PEM: ``sha256:`` and 64 hexadecimal digits."""
    return PIN + hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def authority_at(url: str, pin: str) -> str:
    """The CA's certificate of the controller at ``url``, as PEM, if its fingerprint is ``pin``.

    Raises AuthError if it is another one.
    """
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE  # who it is, is told by the fingerprint
    told = called("GET", f"{url}/agent/v1/ca", anybody)
    try:
        certificate = str(told.json()["certificate"])
        found = fingerprint_of(certificate)
    except (ValueError, KeyError, TypeError):
        raise AuthError(f"whoever answers at {url} is no controller of Rota") from None
    if found != pin.lower():
        raise AuthError(
            f"the controller at {url} has another CA, {found}, than {pin:.80}; nothing was sent "
            "there: check the address, and ask for the line of `rota node invite` again"
        )
    return certificate


def trusting(authority: str) -> ssl.SSLContext:
    """A context that trusts servers with a certificate of this authority, given as PEM, alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a lab's own may be no root
    context.load_verify_locations(cadata=authority)
    return context


def trusted_by(ca: str, url: str | None) -> ssl.SSLContext:
    """A context for ``$ROTA_CA``: a fingerprint, or a file with certificates as PEM.

    Raises InputError for a file that can't be used, AuthError for another CA at ``url``.
    """
    if ca.startswith(PIN):
        if url is None:
            raise InputError("ROTA_CA: a fingerprint needs ROTA_SERVER, the controller's address")
        return trusting(authority_at(url.rstrip("/"), ca))
    try:
        return trusting(Path(ca).read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"ROTA_CA: {ca} can't be used: {error}; it is a file with a certificate as PEM, or "
            "sha256: and the fingerprint of one"
        ) from None


def called(method: str, url: str, context: ssl.SSLContext, **more: Any) -> httpx.Response:
    """The answer to a call. Raises UnreachableError, and AuthError for an untrusted server."""
    timeout_s = more.pop("timeout", TIMEOUT_S)
    try:
        with httpx.Client(verify=context, timeout=timeout_s, trust_env=False) as http:
            return http.request(method, url, **more)
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise AuthError(f"{url}: its certificate can't be trusted: {error}") from None
        raise UnreachableError(f"no controller answers at {url} ({error})") from None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise UnreachableError(f"no controller answers at {url} ({what})") from None
