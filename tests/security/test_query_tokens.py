"""Query tokens stand for a caller, can only read, and expire; other authorizers cannot give them more."""

from __future__ import annotations

from typing import Any

import pytest

from skiway.errors import PermissionDenied, Unauthorized
from skiway.security import Principal, Roles
from skiway.security.signed_tokens import QueryTokens, ReadOnlyAuthorizer
from storage.homes import Clock

KEY = b"k" * 32


def caller(**more: Any) -> Principal:
    roles = frozenset({"administrator"})
    claims = {"region": "EU", "teams": ["x"]}
    return Principal("ada", "a1", roles, Roles().permissions(roles), groups=frozenset({"g"}), claims=claims, **more)


def test_token_is_the_caller_who_only_reads() -> None:
    found = QueryTokens(KEY).principal(QueryTokens(KEY).issue(caller(), 60))
    assert (found.subject, found.account_id, found.roles) == ("ada", "a1", {"administrator"})
    assert (found.groups, found.claims) == ({"g"}, {"region": "EU", "teams": ["x"]})
    assert found.read_only
    assert found.permissions == {"account.read", "catalog.read", "namespace.read", "table.read", "view.read"}


@pytest.mark.parametrize("own_s", [None, 30])
def test_token_expires_with_the_query_and_with_the_credentials_of_the_caller(own_s: int | None) -> None:
    clock = Clock()
    tokens = QueryTokens(KEY, clock=clock)
    token = tokens.issue(caller(expires_at=None if own_s is None else clock.later(own_s)), 60)
    clock.advance((own_s or 60) - 1)
    assert tokens.principal(token).subject == "ada"
    clock.advance(1)
    with pytest.raises(Unauthorized, match="was valid until"):
        tokens.principal(token)


def test_token_of_another_key_is_unknown() -> None:
    with pytest.raises(Unauthorized, match="unknown"):
        QueryTokens(KEY).principal(QueryTokens(b"x" * 32).issue(caller(), 60))


def test_authorizer_that_allows_everything_cannot_give_more() -> None:
    class Generous:
        def require(self, principal: Principal, *any_of: str) -> None:
            assert any_of

    query = QueryTokens(KEY).principal(QueryTokens(KEY).issue(caller(), 60))
    ReadOnlyAuthorizer(Generous()).require(query, "table.read", "table.write")
    ReadOnlyAuthorizer(Generous()).require(caller(), "table.write")
    with pytest.raises(PermissionDenied, match="can only read"):
        ReadOnlyAuthorizer(Generous()).require(query, "table.write", "catalog.write")
