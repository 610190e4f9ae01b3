"""The last use of each token is recorded, to the minute, and never at the expense of a call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from skiway.errors import Unavailable
from skiway.metastore.platform import TokenUses, forget_token, token_uses
from skiway.storage import open_stores

START = datetime(2031, 1, 1, tzinfo=UTC)
HASH = "ab" * 32


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


def test_uses_are_recorded_once_a_minute() -> None:
    clock = Clock()
    with open_stores("memory://") as stores:
        one, other = TokenUses(stores, clock=clock), TokenUses(stores, clock=clock)
        assert token_uses(stores) == {}
        one.note(HASH)
        assert token_uses(stores) == {HASH: START}
        clock.now += timedelta(seconds=59)
        with patch.object(stores.pointers, "compare_and_set", side_effect=AssertionError):
            one.note(HASH)
            other.note(HASH)  # recorded by another server
        clock.now += timedelta(seconds=61)
        other.note(HASH)
        one.note("cd" * 32)
        assert token_uses(stores) == {HASH: clock.now, "cd" * 32: clock.now}
        forget_token(stores, HASH)
        forget_token(stores, HASH)
        assert token_uses(stores) == {"cd" * 32: clock.now}


def test_store_that_fails_does_not_fail_the_call(caplog) -> None:
    with open_stores("memory://") as stores:
        uses = TokenUses(stores)
        with patch.object(stores.pointers, "get", side_effect=Unavailable("the store is down")):
            uses.note(HASH)
    assert "could not be recorded" in caplog.text
