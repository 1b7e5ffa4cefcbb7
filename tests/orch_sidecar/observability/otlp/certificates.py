"""Certificates for collectors on this machine and their clients, made for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, and the files that hold them."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    cert_file: Path
    key_file: Path


def certificate(
    folder: Path, name: str, signer: Certificate | None = None, address: str = "127.0.0.1"
) -> Certificate:
    """Makes a certificate for a server at this address. `signer`: None if it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address(address))]
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer.cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .sign(key if signer is None else signer.key, hashes.SHA256())
    )
    made = Certificate(cert, key, folder / f"{name}.pem", folder / f"{name}.key")
    made.cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    made.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made
