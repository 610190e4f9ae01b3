"""What PyJWT's key client lacks, which is why `skiway.security.signing_keys` fetches keys itself.

Each test describes the current behavior of `jwt.PyJWKClient`. When one of them fails, PyJWT has gained a feature: check
whether the client can then replace a part of our own code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event, Thread

import jwt
import pytest

from security.issuer import Publisher, jwk, publishing, rsa_key
from skiway.security.identity_provider import MAX_BYTES


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with publishing(keys=[jwk(rsa_key(), "one")]) as publisher:
        yield publisher


def client(publisher: Publisher, *, lifespan: float = 300) -> jwt.PyJWKClient:
    return jwt.PyJWKClient(f"{publisher.url}/keys", lifespan=lifespan, timeout=10)


def test_client_forgets_known_keys_while_the_provider_is_down(publisher: Publisher):
    keys = client(publisher, lifespan=1e-6)
    keys.get_signing_key("one")
    publisher.status = 500
    with pytest.raises(jwt.PyJWKClientError):
        keys.get_signing_key("one")


def test_client_sends_a_request_on_every_call_while_the_provider_is_down(publisher: Publisher):
    publisher.status = 500
    keys = client(publisher)
    for _ in range(5):
        with pytest.raises(jwt.PyJWKClientError):
            keys.get_signing_key("one")
    assert publisher.requests["/keys"] == 5


def test_call_with_a_known_key_waits_for_a_running_refresh(publisher: Publisher):
    keys = client(publisher)
    keys.get_signing_key("one")
    keys.cooldown_duration = 0
    fetching, proceed, found = Event(), Event(), Event()
    publisher.before_keys = lambda: (fetching.set(), proceed.wait(200))

    def refresh() -> None:
        with pytest.raises(jwt.PyJWKClientError):
            keys.get_signing_key("unknown")

    def find() -> None:
        keys.get_signing_key("one")
        found.set()

    refreshing = Thread(target=refresh)
    refreshing.start()
    assert fetching.wait(200)
    finding = Thread(target=find)
    finding.start()
    assert not found.wait(0.3)
    proceed.set()
    assert found.wait(200)
    refreshing.join()
    finding.join()


def test_client_reads_a_response_of_any_size(publisher: Publisher):
    publisher.body = b'{"keys": []' + b" " * (MAX_BYTES + 1) + b"}"
    with pytest.raises(jwt.PyJWKSetError, match="did not contain any keys"):
        client(publisher).get_signing_keys()


@pytest.mark.full  # it takes longer than its timeout, which must be long: a busy machine delays single reads by seconds
def test_timeout_applies_to_each_read_only(publisher: Publisher):
    publisher.pause_per_byte_s = 0.02  # about nine seconds in total
    started = time.monotonic()
    jwt.PyJWKClient(f"{publisher.url}/keys", timeout=6).get_signing_keys()
    assert time.monotonic() - started > 6


def test_client_accepts_plain_http_from_any_host():
    assert jwt.PyJWKClient("http://keys.example.com/keys").uri == "http://keys.example.com/keys"


def test_client_accepts_weak_keys_and_secrets_but_no_key_without_an_id(publisher: Publisher):
    publisher.keys = [
        jwk(rsa_key("weak", 1024), "weak"),
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"},
        {**jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(), as_dict=True), "kid": "private"},
        jwk(rsa_key()),
    ]
    assert [key.key_id for key in client(publisher).get_signing_keys()] == ["weak", "shared", "private"]


def test_client_does_not_reveal_whether_a_key_is_limited_to_one_algorithm(publisher: Publisher):
    publisher.keys = [jwk(rsa_key(), "any"), jwk(rsa_key(), "one", alg="RS256")]
    assert [key.algorithm_name for key in client(publisher).get_signing_keys()] == ["RS256", "RS256"]
