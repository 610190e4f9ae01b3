"""Keys that a provider publishes: found, kept, changed, and out of reach."""

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
from skiway.security.oidc import OidcAuthenticator, OidcRules
from skiway.security.signing_keys import MAX_BYTES, PublishedKeys, SigningKey, keys_by_discovery, keys_by_url

KEYS = "/keys"
DISCOVERY = "/.well-known/openid-configuration"


class Stopwatch:
    """Seconds that pass when a test says so."""

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
def enter(publisher, keys):
    """The principal for a token of the publisher."""
    rules = OidcRules(publisher.url, (AUDIENCE,))
    setup = OidcAuthenticator(rules, keys, accounts=KnownAccounts(), clock=lambda: NOW)

    def enter(private=None, algorithm="RS256", *, kid="one", **changes):
        sent = token(private, algorithm, kid=kid, iss=publisher.url, **changes)
        return setup.authenticate({"authorization": f"Bearer {sent}"})

    return enter


def refused(enter, *arguments, **more):
    with pytest.raises(Unauthorized) as refusal:
        enter(*arguments, **more)
    return refusal.value.key


def test_keys_are_found_by_discovery_and_fetched_once(publisher, enter):
    assert [enter().subject, enter().subject] == ["ada", "ada"]
    assert publisher.asked == {DISCOVERY: 1, KEYS: 1}


def test_keys_can_be_found_by_url(publisher):
    found = PublishedKeys(keys_by_url(f"{publisher.url}/keys")).find("one", "RS256")
    assert found.kid == "one"
    assert publisher.asked == {KEYS: 1}


def test_an_elliptic_key_works_beside_an_rsa_key(publisher, enter):
    publisher.keys.append(jwk(ec_key(), "two"))
    assert [enter().subject, enter(ec_key(), "ES256", kid="two").subject] == ["ada", "ada"]


def test_nothing_is_fetched_for_what_is_no_token(publisher, keys):
    setup = OidcAuthenticator(OidcRules(publisher.url, (AUDIENCE,)), keys, accounts=None)
    for sent in ("moon", "a.b.c", token("x" * 64, "HS256", kid="one")):
        with pytest.raises(Unauthorized):
            setup.authenticate({"authorization": sent})
    assert not publisher.asked


@pytest.mark.behavior(78)
def test_a_new_key_is_fetched_when_a_token_names_it(publisher, stopwatch, enter):
    enter()
    publisher.keys = [jwk(rsa_key("next"), "two")]
    stopwatch.now += 15
    assert enter(rsa_key("next"), kid="two").subject == "ada"
    assert publisher.asked[KEYS] == 2


def test_a_withdrawn_key_is_no_longer_good(publisher, stopwatch, enter):
    enter()
    publisher.keys = [jwk(rsa_key("next"), "two")]
    stopwatch.now += 15
    enter(rsa_key("next"), kid="two")
    assert refused(enter) == "token.key"


def test_unknown_keys_fetch_at_most_once_in_the_interval(publisher, stopwatch, enter):
    enter()
    for attempt in range(20):
        assert refused(enter, kid=f"moon-{attempt}") == "token.key"
    assert publisher.asked[KEYS] == 1
    stopwatch.now += 15
    for attempt in range(20):
        assert refused(enter, kid=f"moon-{attempt}") == "token.key"
    assert publisher.asked[KEYS] == 2


def test_a_refusal_shows_a_keys_name_but_not_all_of_an_endless_one(publisher, enter):
    with pytest.raises(Unauthorized, match=r"is signed with key 'm{64}', which") as refusal:
        enter(kid="m" * 1000)
    assert len(refusal.value.message) < 300


def test_old_keys_are_renewed_in_the_background(publisher, stopwatch, enter):
    enter()
    fetched, go_on = Event(), Event()
    publisher.before_keys = lambda: (fetched.set(), go_on.wait(10))
    stopwatch.now += 300
    assert enter().subject == "ada"  # while the new ones are still on their way
    assert fetched.wait(10)
    publisher.keys = [jwk(rsa_key("next"), "two")]
    go_on.set()
    assert enter(rsa_key("next"), kid="two").subject == "ada"  # waits for the fetch that is under way
    assert publisher.asked[KEYS] == 2


@pytest.fixture
def stampede(publisher):
    """Fifty calls at once; the provider answers only when all of them have come."""
    barrier, arrived = Barrier(50), Semaphore(0)
    publisher.before_keys = lambda: [arrived.acquire(timeout=10) for _ in range(50)]

    def arrive(call):
        barrier.wait(10)
        arrived.release()
        return call()

    def stampede(call):
        with ThreadPoolExecutor(50) as pool:
            return list(pool.map(arrive, [call] * 50))

    return stampede


def test_fifty_callers_at_once_share_one_fetch(publisher, enter, stampede):
    assert stampede(lambda: enter().subject) == ["ada"] * 50
    assert publisher.asked[KEYS] == 1


def test_fifty_callers_with_a_new_key_share_one_fetch(publisher, stopwatch, keys, enter, stampede):
    before, publisher.before_keys = publisher.before_keys, lambda: None
    enter()
    publisher.keys, publisher.before_keys = [jwk(rsa_key("next"), "two")], before
    stopwatch.now += 15
    assert stampede(lambda: enter(rsa_key("next"), kid="two").subject) == ["ada"] * 50
    assert publisher.asked[KEYS] == 2


@pytest.mark.parametrize("failure", [{"status": 500}, {"body": b"<html>"}, {"body": b"[]"}, {"keys": []}])
def test_keys_stay_good_while_the_provider_is_down(publisher, stopwatch, enter, caplog, failure):
    enter()
    for name, value in failure.items():
        setattr(publisher, name, value)
    stopwatch.now += 301
    assert enter().subject == "ada"
    assert refused(enter, kid="two") == "token.key"  # waits for the failing fetch, so that the log is complete
    assert "1 known keys remain in use" in caplog.text
    assert publisher.asked[KEYS] == 2


def test_the_provider_is_asked_again_after_it_was_down(publisher, stopwatch, enter):
    publisher.status = 503
    assert refused(enter) == "token.keys.unavailable"
    publisher.status = 200
    assert refused(enter) == "token.keys.unavailable"
    assert publisher.asked[KEYS] == 1
    stopwatch.now += 15
    assert enter().subject == "ada"


def test_a_provider_that_is_not_there_is_told_from_a_bad_token(stopwatch, caplog):
    with publishing() as gone:
        pass
    keys = PublishedKeys(keys_by_discovery(gone.url), monotonic=stopwatch)
    with pytest.raises(Unauthorized, match="could not be fetched") as refusal:
        keys.find("one", "RS256")
    assert refusal.value.key == "token.keys.unavailable"
    assert "ConnectError" in caplog.text


def test_a_hanging_provider_does_not_hang_calls(publisher, stopwatch):
    publisher.before_keys = lambda: publisher.closing.wait(30)
    keys = PublishedKeys(keys_by_url(f"{publisher.url}/keys", timeout_s=30), wait_s=0.2, monotonic=stopwatch)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(Unauthorized) as refusal:
            keys.find("one", "RS256")
        assert refusal.value.key == "token.keys.unavailable"
        stopwatch.now += 15  # time for another fetch, but one is still under way
    assert time.monotonic() - started < 10
    assert publisher.asked == {KEYS: 1}


def test_a_hanging_provider_does_not_slow_calls_with_known_keys(publisher, stopwatch, enter):
    enter()
    publisher.before_keys = lambda: publisher.closing.wait(30)
    stopwatch.now += 301
    started = time.monotonic()
    assert [enter().subject for _ in range(20)] == ["ada"] * 20
    assert time.monotonic() - started < 4


# what is fetched


def test_a_request_gives_up_in_time(publisher):
    publisher.before_keys = lambda: publisher.closing.wait(30)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="ReadTimeout"):
        keys_by_url(f"{publisher.url}/keys", timeout_s=0.2)()
    assert time.monotonic() - started < 10


def test_a_provider_that_drips_its_answer_is_given_up_in_time(publisher):
    publisher.drip_s = 0.02  # every read is quick, all of them together take seconds
    started = time.monotonic()
    with pytest.raises(Unavailable, match="too slow"):
        keys_by_url(f"{publisher.url}/keys", timeout_s=0.3)()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("answer", "complaint"),
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
def test_an_answer_that_is_not_right_is_explained(publisher, answer, complaint):
    for name, value in answer.items():
        setattr(publisher, name, value)
    with pytest.raises(Unavailable, match=complaint):
        keys_by_discovery(publisher.url)()


def test_discovery_does_not_lead_to_unprotected_places(publisher, keys):
    publisher.jwks_uri = "http://keys.example.com/"
    with pytest.raises(InvalidArgument, match="would transfer keys without TLS"):
        keys_by_discovery(publisher.url)()
    with pytest.raises(Unauthorized) as refusal:
        keys.find("one", "RS256")
    assert refusal.value.key == "token.keys.unavailable"


def test_an_issuer_may_end_with_a_slash(publisher):
    publisher.issuer = f"{publisher.url}/"
    assert [key.kid for key in keys_by_discovery(f"{publisher.url}/")()] == ["one"]


def test_keys_that_cannot_verify_are_passed_over(publisher):
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


def test_a_key_serves_only_the_algorithm_it_is_published_for(publisher, enter):
    publisher.keys = [jwk(rsa_key(), "one", alg="RS256")]
    assert enter().subject == "ada"
    assert refused(enter, rsa_key(), "RS512") == "token.algorithm"


def test_a_key_without_an_algorithm_serves_all_that_fit_it(enter):
    assert [enter(rsa_key(), each).subject for each in ("RS256", "RS512", "PS256")] == ["ada"] * 3
    assert refused(enter, ec_key(), "ES256") == "token.algorithm"


def test_a_token_without_a_key_name_needs_the_only_key(publisher, enter, stopwatch):
    assert enter(kid=None).subject == "ada"
    publisher.keys = [jwk(rsa_key(), "one"), jwk(rsa_key("next"), "two"), jwk(ec_key(), "three")]
    stopwatch.now += 15
    assert enter(ec_key(), "ES256", kid="three").subject == "ada"
    assert refused(enter, kid=None) == "token.key"
    assert enter(ec_key(), "ES256", kid=None).subject == "ada"


def test_two_keys_may_share_a_name_when_their_kinds_differ(publisher, enter):
    publisher.keys = [jwk(rsa_key(), "one"), jwk(ec_key(), "one")]
    assert [enter().subject, enter(ec_key(), "ES256").subject] == ["ada", "ada"]


def test_a_key_is_not_in_its_repr():
    assert "RSA" not in repr(SigningKey(rsa_key().public_key(), "one"))
