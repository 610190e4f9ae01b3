"""Access tokens stand for static tokens, and are worth nothing without them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from skiway.errors import Unauthorized
from skiway.security import AccessTokens, NewToken, TokenAuthenticator, TokenEntry, new_token
from storage.homes import Clock

KEY = b"k" * 32


class World:
    """A static token, and an authenticator that knows it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.made: NewToken = new_token("ada", "a1", roles=["administrator"], expires_at=self.clock.later(86400))
        self.entries: list[TokenEntry] = [self.made.entry]
        tokens = AccessTokens(KEY, lifetime_s=3600, session_s=7200, clock=self.clock)
        self.authenticator = TokenAuthenticator(
            lambda: self.entries, accounts=None, access_tokens=tokens, clock=self.clock
        )

    @property
    def static(self) -> str:
        return self.made.text.reveal()

    def caller(self, token: str) -> str:
        return self.authenticator.authenticate({"authorization": f"Bearer {token}"}).subject


@pytest.fixture
def world() -> World:
    return World()


def test_access_token_has_the_rights_of_the_static_token(world: World) -> None:
    token, seconds = world.authenticator.issue(world.static)
    assert seconds == 3600
    found, own = (
        world.authenticator.authenticate({"authorization": f"Bearer {each}"}) for each in (token, world.static)
    )
    assert (found.subject, found.account_id, found.permissions) == (own.subject, own.account_id, own.permissions)
    assert found.expires_at is not None
    assert abs(found.expires_at - world.clock.later(3600)) < timedelta(seconds=1)
    assert world.static not in token
    assert world.made.entry.sha256 not in token


def test_access_token_expires(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    world.clock.advance(3599)
    assert world.caller(token) == "ada"
    world.clock.advance(1)
    with pytest.raises(Unauthorized, match="was valid until"):
        world.caller(token)


def test_access_token_of_a_revoked_or_expired_static_token_is_rejected(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    world.entries.clear()
    with pytest.raises(Unauthorized, match="unknown"):
        world.caller(token)
    with pytest.raises(Unauthorized, match="unknown"):
        world.authenticator.issue(token)
    world.entries.append(world.made.entry)
    world.clock.advance(86400 - 10)
    token, seconds = world.authenticator.issue(world.static)
    assert seconds == 10, "not longer than the static token"
    world.clock.advance(10)
    with pytest.raises(Unauthorized):
        world.caller(token)


def test_session_cannot_be_prolonged_without_the_static_token(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    world.clock.advance(3000)
    token, seconds = world.authenticator.issue(token)
    assert seconds == 3600
    world.clock.advance(3500)
    token, seconds = world.authenticator.issue(token)
    assert seconds == pytest.approx(700, abs=1), "the session began two hours before its end"
    world.clock.advance(701)
    with pytest.raises(Unauthorized):
        world.authenticator.issue(token)
    assert world.caller(world.authenticator.issue(world.static)[0]) == "ada"


def test_forged_access_tokens_are_rejected(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    forged, _ = AccessTokens(b"x" * 32, clock=world.clock).issue(world.made.entry.sha256)
    from_hash, _ = AccessTokens(bytes.fromhex(world.made.entry.sha256), clock=world.clock).issue(
        world.made.entry.sha256
    )
    content, _, mac = token.partition(".")
    other = ("B" if content[-1] != "B" else "C").join((content[:-1], ""))
    for each in (
        forged,
        from_hash,
        f"{other}.{mac}",
        content,
        f"{content}.",
        f"{content}.é",
        "skiway_access_",
        token[:-3],
    ):
        with pytest.raises(Unauthorized):
            world.authenticator.issue(each)


def test_expired_access_token_tells_only_its_own_static_token(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    world.clock.advance(4000)
    assert world.authenticator.renews(token, world.static)
    assert not world.authenticator.renews(token, "another")
    with pytest.raises(Unauthorized):
        world.authenticator.renews("skiway_access_x.y", world.static)


def test_without_access_tokens_none_is_accepted(world: World) -> None:
    token, _ = world.authenticator.issue(world.static)
    plain = TokenAuthenticator(lambda: world.entries, accounts=None, clock=world.clock)
    with pytest.raises(Unauthorized, match="unknown"):
        plain.authenticate({"authorization": f"Bearer {token}"})
