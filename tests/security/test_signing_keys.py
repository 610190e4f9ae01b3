"""Published signing keys: discovery, caching, rotation and outages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Semaphore

import jwt
import pytest

from security.accounts import KnownAccounts
from security.issuer import AUDIENCE, NOW, Publisher, ec_key, jwk, publishing, rsa_key, token
from skiway.errors import InvalidArgument, Unauthorized, Unavailable
from skiway.security.identity_provider import MAX_BYTES
from skiway.security.oidc import OidcAuthenticator, OidcRules
from skiway.security.signing_keys import PublishedKeys, SigningKey, keys_by_discovery, keys_by_url

KEYS = "/keys"
DISCOVERY = "/.well-known/openid-configuration"


class Stopwatch:
    """A monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with publishing(keys=[jwk(rsa_key(), "one")]) as publisher:
        yield publisher


@pytest.fixture
def keys(publisher, stopwatch) -> PublishedKeys:
    return PublishedKeys(keys_by_discovery(publisher.url), monotonic=stopwatch)


@pytest.fixture
def sign_in(publisher, keys):
    """Authenticate with a token of the publisher and return the principal."""
    rules = OidcRules(publisher.url, (AUDIENCE,))
    setup = OidcAuthenticator(rules, keys, accounts=KnownAccounts(), clock=lambda: NOW)

    def sign_in(private=None, algorithm="RS256", *, kid="one", **changes):
        sent = token(private, algorithm, kid=kid, iss=publisher.url, **changes)
        return setup.authenticate({"authorization": f"Bearer {sent}"})

    return sign_in


def rejection_key(sign_in, *arguments, **more):
    with pytest.raises(Unauthorized) as rejection:
        sign_in(*arguments, **more)
    return rejection.value.key


def test_keys_are_found_by_discovery_and_fetched_once(publisher, sign_in):
    assert [sign_in().subject, sign_in().subject] == ["ada", "ada"]
    assert publisher.requests == {DISCOVERY: 1, KEYS: 1}


def test_keys_can_be_found_by_url(publisher):
    found = PublishedKeys(keys_by_url(f"{publisher.url}/keys")).find("one", "RS256")
    assert found.kid == "one"
    assert publisher.requests == {KEYS: 1}


def test_elliptic_curve_key_works_alongside_an_rsa_key(publisher, sign_in):
    publisher.keys.append(jwk(ec_key(), "two"))
    assert [sign_in().subject, sign_in(ec_key(), "ES256", kid="two").subject] == ["ada", "ada"]


def test_nothing_is_fetched_for_malformed_tokens(publisher, keys):
    setup = OidcAuthenticator(OidcRules(publisher.url, (AUDIENCE,)), keys, accounts=None)
    for sent in ("moon", "a.b.c", token("x" * 64, "HS256", kid="one")):
        with pytest.raises(Unauthorized):
            setup.authenticate({"authorization": sent})
    assert not publisher.requests


@pytest.mark.behavior(78)
def test_new_key_is_fetched_when_a_token_names_it(publisher, stopwatch, sign_in):
    sign_in()
    publisher.keys = [jwk(rsa_key("next"), "two")]
    stopwatch.now += 15
    assert sign_in(rsa_key("next"), kid="two").subject == "ada"
    assert publisher.requests[KEYS] == 2


def test_withdrawn_key_is_no_longer_accepted(publisher, stopwatch, sign_in):
    sign_in()
    publisher.keys = [jwk(rsa_key("next"), "two")]
    stopwatch.now += 15
    sign_in(rsa_key("next"), kid="two")
    assert rejection_key(sign_in) == "token.key"


def test_unknown_keys_cause_at_most_one_fetch_per_interval(publisher, stopwatch, sign_in):
    sign_in()
    for attempt in range(20):
        assert rejection_key(sign_in, kid=f"moon-{attempt}") == "token.key"
    assert publisher.requests[KEYS] == 1
    stopwatch.now += 15
    for attempt in range(20):
        assert rejection_key(sign_in, kid=f"moon-{attempt}") == "token.key"
    assert publisher.requests[KEYS] == 2


def test_error_shows_a_truncated_key_id(publisher, sign_in):
    with pytest.raises(Unauthorized, match=r"is signed with key 'm{64}', which") as rejection:
        sign_in(kid="m" * 1000)
    assert len(rejection.value.message) < 300


def test_old_keys_are_refreshed_in_the_background(publisher, stopwatch, sign_in):
    sign_in()
    fetched, proceed = Event(), Event()
    publisher.before_keys = lambda: (fetched.set(), proceed.wait(200))
    stopwatch.now += 300
    assert sign_in().subject == "ada"  # while the new ones are still being fetched
    assert fetched.wait(200)
    publisher.keys = [jwk(rsa_key("next"), "two")]
    proceed.set()
    assert sign_in(rsa_key("next"), kid="two").subject == "ada"  # waits for the running fetch
    assert publisher.requests[KEYS] == 2


@pytest.fixture
def fifty_calls(publisher):
    """Make fifty concurrent calls; the provider responds only when all of them have started."""
    barrier, arrived = Barrier(50), Semaphore(0)
    publisher.before_keys = lambda: [arrived.acquire(timeout=200) for _ in range(50)]

    def start_call(call):
        barrier.wait(200)
        arrived.release()
        return call()

    def fifty_calls(call):
        with ThreadPoolExecutor(50) as pool:
            return list(pool.map(start_call, [call] * 50))

    return fifty_calls


def test_fifty_concurrent_callers_share_one_fetch(publisher, sign_in, fifty_calls):
    assert fifty_calls(lambda: sign_in().subject) == ["ada"] * 50
    assert publisher.requests[KEYS] == 1


def test_fifty_callers_with_a_new_key_share_one_fetch(publisher, stopwatch, keys, sign_in, fifty_calls):
    before, publisher.before_keys = publisher.before_keys, lambda: None
    sign_in()
    publisher.keys, publisher.before_keys = [jwk(rsa_key("next"), "two")], before
    stopwatch.now += 15
    assert fifty_calls(lambda: sign_in(rsa_key("next"), kid="two").subject) == ["ada"] * 50
    assert publisher.requests[KEYS] == 2


@pytest.mark.parametrize("failure", [{"status": 500}, {"body": b"<html>"}, {"body": b"[]"}, {"keys": []}])
def test_keys_stay_valid_while_the_provider_is_down(publisher, stopwatch, sign_in, caplog, failure):
    sign_in()
    for name, value in failure.items():
        setattr(publisher, name, value)
    stopwatch.now += 301
    assert sign_in().subject == "ada"
    assert rejection_key(sign_in, kid="two") == "token.key"  # waits for the failing fetch, so that the log is complete
    assert "1 known keys remain in use" in caplog.text
    assert publisher.requests[KEYS] == 2


def test_provider_is_retried_after_an_outage(publisher, stopwatch, sign_in):
    publisher.status = 503
    assert rejection_key(sign_in) == "token.keys.unavailable"
    publisher.status = 200
    assert rejection_key(sign_in) == "token.keys.unavailable"
    assert publisher.requests[KEYS] == 1
    stopwatch.now += 15
    assert sign_in().subject == "ada"


def test_unreachable_provider_is_distinguished_from_an_invalid_token(stopwatch, caplog):
    with publishing() as gone:
        pass
    keys = PublishedKeys(keys_by_discovery(gone.url), monotonic=stopwatch)
    with pytest.raises(Unauthorized, match=r"it cannot be reached; check auth\.oidc\.issuer") as rejection:
        keys.find("one", "RS256")
    assert rejection.value.key == "token.keys.unavailable"
    assert "ConnectError" in caplog.text


def test_hanging_provider_does_not_block_calls(publisher, stopwatch):
    fetching = Event()
    publisher.before_keys = lambda: (fetching.set(), publisher.closing.wait(200))
    keys = PublishedKeys(keys_by_url(f"{publisher.url}/keys", timeout_s=30), wait_s=0.2, monotonic=stopwatch)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(Unauthorized) as rejection:
            keys.find("one", "RS256")
        assert rejection.value.key == "token.keys.unavailable"
        stopwatch.now += 15  # another fetch is due, but one is still running
    assert time.monotonic() - started < 10
    assert fetching.wait(200)  # on a busy machine, the request may arrive later than the calls give up
    assert publisher.requests == {KEYS: 1}


def test_hanging_provider_does_not_slow_down_calls_with_known_keys(publisher, stopwatch, sign_in):
    sign_in()
    publisher.before_keys = lambda: publisher.closing.wait(200)
    stopwatch.now += 301
    started = time.monotonic()
    assert [sign_in().subject for _ in range(20)] == ["ada"] * 20
    assert time.monotonic() - started < 4


# responses


def test_request_times_out(publisher):
    publisher.before_keys = lambda: publisher.closing.wait(200)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="ReadTimeout"):
        keys_by_url(f"{publisher.url}/keys", timeout_s=0.2)()
    assert time.monotonic() - started < 10


def test_slowly_dripping_response_times_out(publisher):
    publisher.pause_per_byte_s = 0.02  # each read is fast, but together they take seconds
    started = time.monotonic()
    with pytest.raises(Unavailable, match="too slow"):
        keys_by_url(f"{publisher.url}/keys", timeout_s=0.3)()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("answer", "message_pattern"),
    [
        ({"status": 404}, "the response has status 404"),
        ({"status": 302}, "the response has status 302"),
        ({"body": b"moon"}, "the response is not JSON"),
        ({"body": b"[" * 100_000}, "the response is not JSON"),
        ({"body": b"[]"}, "the response is not a JSON object"),
        ({"body": b"{}"}, "no usable signing key"),
        ({"body": b'{"keys": {}}'}, "no usable signing key"),
        ({"body": b" " * (MAX_BYTES + 1)}, "larger than 1048576 bytes"),
        ({"issuer": "https://evil.example.com"}, "metadata of issuer 'https://evil.example.com'"),
    ],
)
def test_invalid_response_is_explained(publisher, answer, message_pattern):
    for name, value in answer.items():
        setattr(publisher, name, value)
    with pytest.raises(Unavailable, match=message_pattern):
        keys_by_discovery(publisher.url)()


def test_discovery_does_not_accept_urls_without_tls(publisher, keys):
    publisher.jwks_uri = "http://keys.example.com/"
    with pytest.raises(InvalidArgument, match="would transfer keys without TLS"):
        keys_by_discovery(publisher.url)()
    with pytest.raises(Unauthorized) as rejection:
        keys.find("one", "RS256")
    assert rejection.value.key == "token.keys.unavailable"


def test_issuer_can_end_with_a_slash(publisher):
    publisher.issuer = f"{publisher.url}/"
    assert [key.kid for key in keys_by_discovery(f"{publisher.url}/")()] == ["one"]


def test_unusable_keys_are_skipped(publisher):
    private = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(), as_dict=True)
    publisher.keys = [
        "moon",
        {},
        {"kty": "RSA", "kid": "broken", "n": 7, "e": "AQAB"},
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"},
        {"kty": "MOON", "kid": "strange"},
        jwk(rsa_key(), "for encryption", use="enc"),
        jwk(rsa_key(), "wrapping", alg="RSA-OAEP"),
        jwk(rsa_key(), "odd", alg=["RS256"]),
        jwk(rsa_key("weak", 1024), "weak"),
        {**private, "kid": "private"},
        {**jwk(rsa_key()), "kid": 7},
        jwk(rsa_key(), "good", use="sig"),
    ]
    assert [key.kid for key in keys_by_url(f"{publisher.url}/keys")()] == ["good"]


def test_key_is_used_only_with_its_published_algorithm(publisher, sign_in):
    publisher.keys = [jwk(rsa_key(), "one", alg="RS256")]
    assert sign_in().subject == "ada"
    assert rejection_key(sign_in, rsa_key(), "RS512") == "token.algorithm"


def test_key_without_an_algorithm_is_used_with_all_matching_ones(sign_in):
    assert [sign_in(rsa_key(), each).subject for each in ("RS256", "RS512", "PS256")] == ["ada"] * 3
    assert rejection_key(sign_in, ec_key(), "ES256") == "token.algorithm"


def test_token_without_a_key_id_requires_a_single_matching_key(publisher, sign_in, stopwatch):
    assert sign_in(kid=None).subject == "ada"
    publisher.keys = [jwk(rsa_key(), "one"), jwk(rsa_key("next"), "two"), jwk(ec_key(), "three")]
    stopwatch.now += 15
    assert sign_in(ec_key(), "ES256", kid="three").subject == "ada"
    assert rejection_key(sign_in, kid=None) == "token.key"
    assert sign_in(ec_key(), "ES256", kid=None).subject == "ada"


def test_two_keys_of_different_types_can_share_an_id(publisher, sign_in):
    publisher.keys = [jwk(rsa_key(), "one"), jwk(ec_key(), "one")]
    assert [sign_in().subject, sign_in(ec_key(), "ES256").subject] == ["ada", "ada"]


def test_repr_does_not_show_the_key():
    assert "RSA" not in repr(SigningKey(rsa_key().public_key(), "one"))
