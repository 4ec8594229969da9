"""TLS for callers from other machines: by the cluster's own CA, or with a lab's certificate.

The CA is made with the first `rota up --listen` and stays: machines that join know it by its
fingerprint. The server's certificate is made anew at each start.
"""

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rota.errors import InputError, pip_install
from rota.folder import Folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, KeyUsage, Name

AUTHORITY, AUTHORITY_DAYS = "Rota cluster", 3650
SKEW = datetime.timedelta(days=1)  # clocks of machines differ
CERTIFICATE_END = "-----END CERTIFICATE-----"


class Listener(NamedTuple):
    """An address for callers from other machines, how they are served, and whom they can trust.

    ``authority`` is the certificate, as PEM, that the server's one is checked against.
    """

    host: str
    port: int
    address: str  # IP address of the host
    context: ssl.SSLContext
    authority: str

    @property
    def reach(self) -> str:
        """The address at which other machines find processes of this one; "" if it is not told."""
        return "" if ipaddress.ip_address(self.address).is_unspecified else self.address

    @property
    def url(self) -> str:
        """The URL under which other machines reach the API."""
        return f"https://{_bracketed(self.host)}:{self.port}"


def listener(
    folder: Folder, text: str, certificate: str | None = None, key: str | None = None
) -> Listener:
    """The listener on ``HOST:PORT``, with a certificate and key of one's own if they are given.

    HOST is what other machines call this one. Raises InputError.
    """
    host, port, address = _place(text)
    if (certificate is None) != (key is None):
        name = "--tls-key" if key is None else "--tls-cert"
        raise InputError(f"{name}: it is missing; give --tls-cert and --tls-key, or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None and key is not None:
        try:
            context.load_cert_chain(certificate, key)
            authority = _last_certificate(Path(certificate).read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"--tls-cert: {certificate} and {key} can't be used: {error}; give the server's "
                "certificate, with those that it was issued by after it, and its key, as PEM"
            ) from None
        return Listener(host, port, address, context, authority)
    pair, authority = _issue(folder, host)
    context.load_cert_chain(pair)
    return Listener(host, port, address, context, authority)


def certifier() -> Callable[[str], tuple[str, str]] | None:
    """A maker of self-signed certificates: from a name, one and its key, as PEM.

    None without the package that makes them.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding
    except ModuleNotFoundError:
        return None

    def certify(name: str) -> tuple[str, str]:
        key = _new_key()
        builder = (
            _unsigned(name, key)
            .issuer_name(_called(name))
            .not_valid_after(_now() + datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        certificate = _signed(builder, key).public_bytes(Encoding.PEM)
        return certificate.decode(), _private(key).decode()

    return certify


def _place(text: str) -> tuple[str, int, str]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InputError(
            f"--listen: {text!r} is not of the form HOST:PORT; write for example gpu0.lab:7800"
        )
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"--listen: {host} can't be found: {error.strerror}; give a name or an address of this "
            "machine by which other ones call it"
        ) from None
    address = str(found[0][4][0])
    parsed, is_name = ipaddress.ip_address(address), address != host
    if parsed.is_unspecified or (parsed.is_loopback and is_name and host != "localhost"):
        what = f"it is {address} here, which no other machine reaches"
        if parsed.is_unspecified:
            what = "it names no machine that others could call"
        raise InputError(
            f"--listen: {host} can't be used: {what}; give the address of a network interface, "
            "such as 10.0.0.5:7800 (`ip addr` lists them)"
        )
    return host, int(port), address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _last_certificate(text: str) -> str:
    """The last certificate of a PEM file: the one that those before it were issued by, or it."""
    pieces = [piece for piece in text.split(CERTIFICATE_END) if "BEGIN CERTIFICATE" in piece]
    if not pieces:
        raise ValueError("there is no certificate")
    last = pieces[-1]
    return last[last.index("-----BEGIN CERTIFICATE") :] + CERTIFICATE_END + "\n"


def _issue(folder: Folder, host: str) -> tuple[Path, str]:
    """A file with a new certificate for ``host`` and its key, and the CA's certificate as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError:
        raise InputError(
            "--listen: the package cryptography, which makes the certificates, is not installed; "
            f"install it with: {pip_install('hosts')} (or give --tls-cert and --tls-key)"
        ) from None
    try:
        folder.tls.mkdir(exist_ok=True, mode=0o700)
        authority, authority_key = _authority(folder)
        key = _new_key()
        name: x509.GeneralName
        try:
            name = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        builder = (
            _unsigned(host, key)
            .issuer_name(authority.subject)
            .not_valid_after(authority.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )
        certificate = _signed(builder, authority_key)
        pem = serialization.Encoding.PEM
        pair = folder.tls / "server.pem"
        _write(pair, _private(key) + certificate.public_bytes(pem))
        return pair, authority.public_bytes(pem).decode()
    except OSError as error:
        raise folder.unusable(error) from None


def _authority(folder: Folder) -> "tuple[Certificate, EllipticCurvePrivateKey]":
    """The cluster's CA, made now if there is none yet. Raises InputError, OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    certificate_file, key_file = folder.tls / "ca.pem", folder.tls / "ca.key"
    if not certificate_file.exists():
        key = _new_key()
        builder = (
            _unsigned(AUTHORITY, key)
            .issuer_name(_called(AUTHORITY))
            .not_valid_after(_now() + datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_may_sign(), critical=True)
        )
        _write(key_file, _private(key))
        _write(certificate_file, _signed(builder, key).public_bytes(Encoding.PEM))
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        found = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(found, EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
    except ValueError:
        raise InputError(
            f"{folder.tls}: the CA can't be read; restore ca.pem and ca.key, or remove both: then "
            "a new CA is made, and all machines have to join again"
        ) from None
    return certificate, found


def _may_sign() -> "KeyUsage":
    from cryptography import x509

    rest = ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    rest += ["crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(digital_signature=True, key_cert_sign=True, **dict.fromkeys(rest, False))


def _unsigned(name: str, key: "EllipticCurvePrivateKey") -> "CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _called(name: str) -> "Name":
    from cryptography.x509 import Name, NameAttribute
    from cryptography.x509.oid import NameOID

    return Name([NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _signed(builder: "CertificateBuilder", key: "EllipticCurvePrivateKey") -> "Certificate":
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _private(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _write(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
