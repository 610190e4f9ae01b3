"""Authorizers come from entry points, and all doors ask them."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from skiway.config import load
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.foundation import extras
from skiway.runtime.authentication import AUTHORIZERS, authorizer
from skiway.runtime.parts import access_of
from skiway.security import PermissionAuthorizer, Principal, Roles
from skiway.storage import open_stores

ADA = Principal("ada", "default", frozenset({"administrator"}), Roles().permissions(["administrator"]))


class ReadOnly:
    """Rejects all changes, whatever the roles are."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles

    def require(self, principal: Principal, *any_of: str) -> None:
        if not any(each.endswith(".read") for each in any_of):
            raise PermissionDenied(f"{principal.subject} may only read today")


def nothing(_: Roles) -> object:
    return object()


@pytest.fixture(autouse=True)
def _entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        EntryPoint("read-only", f"{__name__}:ReadOnly", AUTHORIZERS),
        EntryPoint("nothing", f"{__name__}:nothing", AUTHORIZERS),
        EntryPoint("broken", f"{__name__}:missing", AUTHORIZERS),
    ]
    monkeypatch.setattr(extras, "_installed", lambda _: {AUTHORIZERS: found})


def test_roles_decide_by_default() -> None:
    assert isinstance(authorizer(load()), PermissionAuthorizer)


def test_configured_authorizer_decides_for_all_doors() -> None:
    settings = load(flags={"auth.authorizer": "read-only", "auth.platform_admin.role": "boss"})
    with open_stores("memory://") as stores:
        access = access_of(settings, stores)
    assert isinstance(access.authorizer, ReadOnly)
    assert access.authorizer.roles.platform_admin == "boss"
    decision = access.decide(ADA)  # what the lake, REST and gRPC ask
    assert decision.everywhere("table.read")
    assert not decision.everywhere("table.write")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("moon", "choose from broken, nothing, read-only, roles"),
        ("broken", "cannot be imported"),
        ("nothing", "require"),
    ],
)
def test_mistakes_are_reported_at_the_start(name: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        authorizer(load(flags={"auth.authorizer": name}))
