"""Which role may do what, and who is refused."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized
from skiway.security import NOBODY, PermissionAuthorizer, Principal, Roles

READ = {"account.read", "catalog.read", "namespace.read", "table.read", "view.read"}
WRITE = {"catalog.write", "namespace.write", "table.write", "view.write"}
MANAGE = {"connector.manage", "system-objects.read"}
INTERNAL = {"storage-authority.resolve-internal", "reconcile-executor-control.internal"}
INIT = {"account.read", "account.write", "catalog.read", "catalog.write", "namespace.read", "namespace.write"}

MATRIX = {
    "default": READ,
    "administrator": READ | WRITE | MANAGE | {"account.delete"},
    "developer": READ | WRITE | MANAGE | {"account.delete"},
    "platform-admin": {"account.read", "account.write", "account.delete"},
    "init-account": INIT | {"connector.create"},
    "delete-account": {"account.delete"},
    "system-objects": {"system-objects.read"},
    "reconcile-worker": READ | WRITE | MANAGE | INTERNAL,
}
EVERYTHING = sorted(set().union(*MATRIX.values()))


def principal(*roles: str, **facts: str) -> Principal:
    return Principal("ada", facts.get("account", "acme"), frozenset(roles), Roles().permissions(roles))


@pytest.mark.behavior(79)
@pytest.mark.parametrize("role", MATRIX)
def test_a_role_allows_exactly_its_row_of_the_matrix(role):
    authorizer, caller = PermissionAuthorizer(), principal(role)
    allowed = set()
    for permission in EVERYTHING:
        try:
            authorizer.require(caller, permission)
        except PermissionDenied:
            continue
        allowed.add(permission)
    assert allowed == MATRIX[role]


def test_the_matrix_of_this_test_has_every_role():
    assert set(Roles().table()) == set(MATRIX)


@pytest.mark.behavior(79)
@pytest.mark.parametrize("roles", [(), ("offline_access",), ("", "  ")])
def test_a_caller_without_a_known_role_may_read(roles):
    assert Roles().permissions(roles) == READ


@pytest.mark.behavior(79)
def test_names_of_roles_have_no_case_and_unknown_ones_are_ignored():
    assert Roles().permissions(["Administrator ", "offline_access"]) == MATRIX["administrator"]


def test_several_roles_add_up():
    assert Roles().permissions(["delete-account", "system-objects"]) == {"account.delete", "system-objects.read"}


def test_a_known_role_takes_the_place_of_the_default():
    assert "table.read" not in Roles().permissions(["delete-account"])


def test_the_platform_administrators_role_can_have_another_name():
    roles = Roles(platform_admin=" Cloud-Ops ")
    assert roles.permissions(["cloud-ops"]) == MATRIX["platform-admin"]
    assert roles.permissions(["platform-admin"]) == READ


@pytest.mark.parametrize("name", ["", "  ", "administrator", "Default"])
def test_the_platform_administrators_role_cannot_be_blank_or_another_role(name):
    with pytest.raises(InvalidArgument, match="platform-admin"):
        Roles(platform_admin=name)


@pytest.mark.behavior(79)
def test_any_one_of_the_permissions_is_enough():
    PermissionAuthorizer().require(principal("delete-account"), "account.write", "account.delete")


@pytest.mark.behavior(79)
def test_a_refusal_names_the_permission_the_caller_its_roles_and_who_has_it():
    with pytest.raises(PermissionDenied) as refused:
        PermissionAuthorizer().require(principal("default", "guest"), "table.write")
    assert refused.value.message == (
        "this requires the permission table.write, but ada in account acme has default, guest: "
        "ask for one of the roles administrator, developer, reconcile-worker"
    )
    assert refused.value.key == "permission.missing"
    assert refused.value.params == {"permission": "table.write", "subject": "ada", "roles": "default, guest"}


def test_a_refusal_on_the_platform_says_so():
    with pytest.raises(PermissionDenied, match="ada on the platform has platform-admin: no role grants it"):
        PermissionAuthorizer().require(principal("platform-admin", account=""), "moon.write")


@pytest.mark.behavior(79)
def test_the_empty_principal_is_not_denied_but_unknown():
    with pytest.raises(Unauthorized) as refused:
        PermissionAuthorizer().require(NOBODY, "table.read")
    assert refused.value.key == "principal.missing"


def test_a_call_without_a_permission_is_nobodys_to_make():
    with pytest.raises(PermissionDenied):
        PermissionAuthorizer().require(principal("administrator"))


def test_who_is_on_the_platform_is_not_nobody():
    assert principal("platform-admin", account="").is_platform
    assert not principal("administrator").is_platform
    assert NOBODY.is_nobody
    assert not NOBODY.is_platform
