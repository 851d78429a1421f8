"""TLS in front of a Redis, or of Redis itself, with certificates of an own authority."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from celery_lowkiq.embedded import EmbeddedServer, ServerFailed, find_server
from tests.ports import free_port

#: What a key may be used for; a certificate says yes or no to each.
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True)
class Identity:
    """Files of a certificate and its key; the key is encrypted if there is a password."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates of servers on 127.0.0.1, and of clients."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = _new_key()
        self._name = _subject(name)
        certificate = _signed(self._name, self._key.public_key(), self._name, self._key, True)
        self.certificate: Path = _written(directory / f"{name}.pem", certificate)

    def identity(self, name: str, password: str | None = None) -> Identity:
        """A new certificate and its key."""
        key = _new_key()
        certificate = _signed(_subject(name), key.public_key(), self._name, self._key, False)
        encryption: Any = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        path = self._directory / f"{name}-key.pem"
        path.write_bytes(data)
        return Identity(_written(self._directory / f"{name}.pem", certificate), path)


@contextlib.contextmanager
def tls_in_front(path: str, authority: Authority) -> Iterator[int]:
    """The port of a server that wants a client's certificate, and passes on to a Redis's unix socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.certificate)
    own = authority.identity("server")
    context.load_cert_chain(own.certificate, own.key)

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(self.request, server_side=True) as client:
                _forward(client, path)

    with serving(Connection) as port:
        yield port


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """The port of a server whose connections a handler has, each in a thread."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _forward(client: ssl.SSLSocket, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as redis:
        redis.connect(path)
        # A TLS socket is not for two threads: a reply comes after its request.
        redis.settimeout(0.02)
        client.settimeout(0.02)
        while _passed(client, redis) and _passed(redis, client):
            pass


def _passed(source: socket.socket, target: socket.socket) -> bool:
    """Pass on what there is; False at the end."""
    try:
        data = source.recv(1 << 20)
    except TimeoutError:
        return True
    target.sendall(data)
    return bool(data)


def tls_files(authority: Authority, server: Identity) -> dict[str, str]:
    """Options of redis.conf for TLS, also between servers, with clients that have a certificate."""
    return {
        "tls-cert-file": str(server.certificate),
        "tls-key-file": str(server.key),
        "tls-ca-cert-file": str(authority.certificate),
        "tls-auth-clients": "yes",
        "tls-replication": "yes",
    }


def find_tls_server(authority: Authority) -> Path:
    """A server that was built with TLS; skips the test without one.

    LOWKIQ_TEST_TLS_SERVER names one; otherwise it is the one that all tests use, if it can.
    """
    config = {**tls_files(authority, authority.identity("probe")), "tls-port": str(free_port())}
    named = [os.environ.get(name) for name in ("LOWKIQ_TEST_TLS_SERVER", "LOWKIQ_TEST_SERVER")]
    for executable in [Path(name) for name in named if name] + [find_server()]:
        with contextlib.suppress(ServerFailed), EmbeddedServer(executable=executable, config=config):
            return executable
    pytest.skip("no Redis with TLS: LOWKIQ_TEST_TLS_SERVER may name one")


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signed(subject: x509.Name, key: Any, issuer: x509.Name, issuers_key: Any, is_authority: bool) -> Any:
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    # From Python 3.13 on, a chain without these is refused.
    of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key.public_key())
    usage = dict.fromkeys(USAGES, False) | {"digital_signature": True, "key_cert_sign": is_authority}
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(of_issuer, critical=False)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(issuers_key, hashes.SHA256())
    )


def _written(path: Path, certificate: Any) -> Path:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path
