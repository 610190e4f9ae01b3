"""An identity provider to test against: real keys, and a real HTTP server that publishes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
AUDIENCE = "skiway"
STATIC_ISSUER = "https://login.example.com"


@cache
def rsa_key(name: str = "main", bits: int = 2048) -> rsa.RSAPrivateKey:
    """A key by name, cached because generating one is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key(curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


@cache
def ed_key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def pem(private: Any) -> str:
    """The public key in PEM format."""
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(private: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """The public key as a member of a key set."""
    entry = _algorithm(private).to_jwk(private.public_key(), as_dict=True)
    return {**entry, **({"kid": kid} if kid else {}), **more}


def _algorithm(private: Any) -> Any:
    if isinstance(private, rsa.RSAPrivateKey):
        return jwt.algorithms.RSAAlgorithm
    return (
        jwt.algorithms.ECAlgorithm if isinstance(private, ec.EllipticCurvePrivateKey) else jwt.algorithms.OKPAlgorithm
    )


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a valid token; `name=None` omits a claim."""
    valid_claims = {
        "iss": STATIC_ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "account_id": "acme",
        "exp": NOW + timedelta(minutes=5),
        "nbf": NOW - timedelta(minutes=5),
        "iat": NOW - timedelta(minutes=5),
    }
    return {name: value for name, value in {**valid_claims, **changes}.items() if value is not None}


def token(private: Any = None, algorithm: str = "RS256", *, kid: str | None = None, **changes: Any) -> str:
    """A signed token."""
    headers = {"kid": kid} if kid else None
    return jwt.encode(claims(**changes), private or rsa_key(), algorithm=algorithm, headers=headers)


@dataclass
class Publisher:
    """The responses of the provider's server, and how often each path was requested."""

    url: str = ""
    keys: list[Any] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    issuer: str | None = None
    jwks_uri: str | None = None
    before_keys: Callable[[], object] = lambda: None
    exchange: Callable[[dict[str, str], str], tuple[int, Any]] = lambda _form, _authorization: (404, {})
    """The response to a form with a code, and to its header `authorization`."""
    forms: dict[str, Callable[[dict[str, str]], tuple[int, Any]]] = field(default_factory=dict)
    """The responses to forms sent to other paths."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """More of what the provider publishes about itself."""
    requests: Counter[str] = field(default_factory=Counter)
    pause_per_byte_s: float = 0.0
    closing: Event = field(default_factory=Event)

    def answer(self, path: str) -> tuple[int, bytes]:
        self.requests[path] += 1
        if path == "/keys":
            self.before_keys()
            body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
            return self.status, body
        if path == "/.well-known/openid-configuration":
            found = {
                "issuer": self.issuer or self.url,
                "jwks_uri": self.jwks_uri or f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                **self.metadata,
            }
            return 200, json.dumps(found).encode()
        return 404, b""


@contextmanager
def publishing(**facts: Any) -> Iterator[Publisher]:
    """Run the server on a free local port."""
    publisher = Publisher(**facts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = publisher.answer(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if status == 302:
                self.send_header("location", "/keys")
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                self._send(body)

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"])).decode()
            form = dict(parse_qsl(sent))
            publisher.requests[self.path] += 1
            if self.path in publisher.forms:
                status, found = publisher.forms[self.path](form)
            else:
                status, found = publisher.exchange(form, self.headers.get("authorization", ""))
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send(self, body: bytes) -> None:
            if not publisher.pause_per_byte_s:
                self.wfile.write(body)
                return
            for index in range(len(body)):
                self.wfile.write(body[index : index + 1])
                if publisher.closing.wait(publisher.pause_per_byte_s):
                    return

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    publisher.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield publisher
    finally:
        publisher.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
