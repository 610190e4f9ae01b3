"""The device flow: what a provider may answer while a person logs in, and how long this side waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from security.device_provider import CLIENT, DeviceProvider, device_provider
from skiway.errors import InvalidArgument, SkiwayError, TimedOut, Unauthorized, Unavailable, Unsupported
from skiway.security.identity_provider import DeviceLogin, IssuedTokens

PENDING = {"error": "authorization_pending"}


@dataclass
class Clock:
    """Time that passes only while someone sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def provider() -> Iterator[DeviceProvider]:
    with device_provider() as found:
        yield found


def logged_in(provider: DeviceProvider, clock: Clock | None = None, *, client: str = CLIENT) -> IssuedTokens:
    clock = clock or Clock()
    login = DeviceLogin(provider.published.url, client, scopes="openid offline_access")
    return login.wait(login.begin(), sleep=clock.sleep, clock=clock)


def test_tokens_arrive_when_the_person_has_confirmed(provider: DeviceProvider) -> None:
    provider.answers, provider.code = [PENDING, PENDING], {"interval": 7}
    clock = Clock()
    found = logged_in(provider, clock)
    assert found.access_token in provider.issued
    assert found.refresh_token == provider.refresh_token
    assert clock.slept == [7, 7, 7]
    assert provider.scopes == "openid offline_access"


def test_default_interval_is_five_seconds_and_slow_down_adds_five(provider: DeviceProvider) -> None:
    provider.answers, provider.code = [PENDING, {"error": "slow_down"}, PENDING], {"interval": None}
    clock = Clock()
    logged_in(provider, clock)
    assert clock.slept == [5, 5, 10, 10]


def test_code_that_nobody_confirms_expires(provider: DeviceProvider) -> None:
    provider.answers, provider.code = [PENDING] * 20, {"interval": 10, "expires_in": 60}
    clock = Clock()
    with pytest.raises(
        TimedOut, match="the code WDJB-MJHT has expired before it was confirmed: run skiway login again"
    ):
        logged_in(provider, clock)
    assert sum(clock.slept) == 60


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("expired_token", TimedOut, "the code WDJB-MJHT has expired"),
        ("access_denied", Unauthorized, "the login was refused at 127.0.0.1: access_denied: not. today; run skiway"),
        ("invalid_client", Unauthorized, "127.0.0.1 refused the login: invalid_client: not"),
    ],
)
def test_errors_of_the_provider_end_the_login(
    provider: DeviceProvider, error: str, kind: type[SkiwayError], message: str
) -> None:
    provider.answers = [PENDING, {"error": error, "error_description": "not\x1b today"}]
    with pytest.raises(kind, match=message) as refused:
        logged_in(provider)
    assert "\x1b" not in str(refused.value)


def test_provider_without_a_device_endpoint_is_named(provider: DeviceProvider) -> None:
    del provider.published.metadata["device_authorization_endpoint"]
    with pytest.raises(Unsupported, match=r"no device_authorization_endpoint.*skiway login --token-file -"):
        logged_in(provider)


def test_unknown_client_is_refused_at_the_beginning(provider: DeviceProvider) -> None:
    with pytest.raises(Unauthorized, match="begin a login for the client 'other': invalid_client: unknown client; ask"):
        logged_in(provider, client="other")


@pytest.mark.parametrize("missing", ["device_code", "user_code", "verification_uri"])
def test_response_without_a_code_is_reported(provider: DeviceProvider, missing: str) -> None:
    provider.code = {missing: None}
    with pytest.raises(Unavailable, match="no code, or no page to enter it; check the network of this machine"):
        logged_in(provider)


def test_response_without_a_token_is_reported(provider: DeviceProvider) -> None:
    provider.given = {"access_token": None}
    with pytest.raises(Unavailable, match="its response contains no token"):
        logged_in(provider)


def test_lost_requests_do_not_end_the_login_but_a_dead_provider_does(provider: DeviceProvider) -> None:
    answered, lost = provider.published.exchange, [2]

    def flaky(form: dict[str, str], authorization: str) -> tuple[int, object]:
        if lost[0]:
            lost[0] -= 1
            return 502, ["not an object"]
        return answered(form, authorization)

    provider.published.exchange = flaky
    assert logged_in(provider).access_token
    lost[0] = 100
    with pytest.raises(Unavailable, match="not a JSON object"):
        logged_in(provider)
    assert lost[0] == 95


def test_tokens_never_travel_without_tls(provider: DeviceProvider) -> None:
    with pytest.raises(InvalidArgument, match="without TLS"):
        DeviceLogin("http://login.example.com", CLIENT)
    provider.published.metadata["device_authorization_endpoint"] = "http://login.example.com/device"
    with pytest.raises(InvalidArgument, match="without TLS"):
        logged_in(provider)


def test_refresh_keeps_the_refresh_token_if_there_is_no_new_one(provider: DeviceProvider) -> None:
    first = logged_in(provider)
    login = DeviceLogin(provider.published.url, CLIENT)
    second = login.refresh(first.refresh_token)
    assert second.access_token != first.access_token
    assert second.refresh_token == provider.refresh_token != first.refresh_token
    provider.given = {"refresh_token": None}
    assert login.refresh(second.refresh_token).refresh_token == second.refresh_token
    with pytest.raises(Unauthorized, match=r"the login at 127.0.0.1 has ended: invalid_grant; run skiway login again"):
        login.refresh(first.refresh_token)


def test_nothing_that_is_printed_contains_a_secret(provider: DeviceProvider) -> None:
    login = DeviceLogin(provider.published.url, CLIENT)
    code = login.begin()
    shown = f"{code!r} {code} {login.wait(code, sleep=lambda _: None)!r}"
    assert not any(each in shown for each in provider.issued)
