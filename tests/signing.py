"""A key and a certificate for Celery's ``auth`` serializer."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


def make_identity(directory: Path, name: str = "orders") -> dict[str, str]:
    """Celery's security settings with files of a new key and its certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    as_pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    files = {
        "security_key": key.private_bytes(as_pem, form, serialization.NoEncryption()),
        "security_certificate": certificate.public_bytes(as_pem),
    }
    paths = {setting: directory / f"{name}-{setting}.pem" for setting in files}
    for setting, data in files.items():
        paths[setting].write_bytes(data)
    store = directory / f"{name}-*certificate.pem"
    return {setting: str(path) for setting, path in paths.items()} | {"security_cert_store": str(store)}
