"""The permissions of each role, and rejected callers."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized
from skiway.security import NOBODY, PermissionAuthorizer, Principal, Roles
from skiway.security.authentication import Admission

READ = {"account.read", "catalog.read", "namespace.read", "table.read", "view.read"}
WRITE = {"catalog.write", "namespace.write", "table.write", "view.write"}
MANAGE = {"connector.manage", "system-objects.read"}
INTERNAL = {"storage-authority.resolve-internal", "reconcile-executor-control.internal"}
INIT = {"account.read", "account.write", "catalog.read", "catalog.write", "namespace.read", "namespace.write"}

MATRIX = {
    "default": READ,
    "administrator": READ | WRITE | MANAGE | {"account.delete", "grant.manage", "policy.manage", "webhook.manage"},
    "developer": READ | WRITE | MANAGE | {"account.delete", "grant.manage", "policy.manage", "webhook.manage"},
    "member": {"account.read"},
    "init-account": INIT | {"connector.create"},
    "delete-account": {"account.delete"},
    "system-objects": {"system-objects.read"},
    "reconcile-worker": READ | WRITE | MANAGE | INTERNAL,
}
PLATFORM_MATRIX = {
    "platform-admin": {"account.read", "account.write", "account.delete", "platform.accounts", "platform.observe"},
    "platform-monitor": {"platform.observe"},
}
EVERYTHING = sorted(set().union(*MATRIX.values(), *PLATFORM_MATRIX.values()))


def principal(*roles: str, **facts: str) -> Principal:
    account = facts.get("account", "acme")
    permissions = Roles().permissions(roles) if account else Roles().platform_permissions(roles)
    return Principal("ada", account, frozenset(roles), permissions)


@pytest.mark.behavior(79)
@pytest.mark.parametrize("role", [*MATRIX, *PLATFORM_MATRIX])
@pytest.mark.parametrize("account", ["acme", ""])
def test_role_grants_exactly_its_row_of_the_matrix(role, account):
    authorizer, caller = PermissionAuthorizer(), principal(role, account=account)
    allowed = set()
    for permission in EVERYTHING:
        try:
            authorizer.require(caller, permission)
        except PermissionDenied:
            continue
        allowed.add(permission)
    assert allowed == (MATRIX.get(role, READ) if account else PLATFORM_MATRIX.get(role, set()))


def test_matrix_of_this_test_has_every_role():
    assert set(Roles().table()) == {*MATRIX, *PLATFORM_MATRIX}
    assert set(Roles().platform_table()) == set(PLATFORM_MATRIX)


def test_no_account_role_has_a_permission_of_the_platform():
    assert not {permission for row in MATRIX.values() for permission in row if permission.startswith("platform.")}


@pytest.mark.behavior(79)
@pytest.mark.parametrize("roles", [(), ("offline_access",), ("", "  ")])
def test_caller_without_a_known_role_can_read(roles):
    assert Roles().permissions(roles) == READ


@pytest.mark.behavior(79)
def test_role_names_are_case_insensitive_and_unknown_ones_are_ignored():
    assert Roles().permissions(["Administrator ", "offline_access"]) == MATRIX["administrator"]


def test_permissions_of_several_roles_are_combined():
    assert Roles().permissions(["delete-account", "system-objects"]) == {"account.delete", "system-objects.read"}


def test_known_role_replaces_the_default_role():
    assert "table.read" not in Roles().permissions(["delete-account"])


def test_platform_admin_role_name_is_configurable():
    roles = Roles(platform_admin=" Cloud-Ops ")
    assert roles.platform_permissions(["cloud-ops"]) == PLATFORM_MATRIX["platform-admin"]
    assert roles.platform_permissions(["platform-admin"]) == set()


@pytest.mark.parametrize("name", ["", "  ", "administrator", "Default", "platform-monitor"])
def test_platform_admin_role_name_cannot_be_blank_or_that_of_another_role(name):
    with pytest.raises(InvalidArgument, match="platform-admin"):
        Roles(platform_admin=name)


@pytest.mark.behavior(79)
def test_any_one_of_the_permissions_is_enough():
    PermissionAuthorizer().require(principal("delete-account"), "account.write", "account.delete")


@pytest.mark.behavior(79)
def test_denial_names_the_permission_the_caller_and_suitable_roles():
    with pytest.raises(PermissionDenied) as refused:
        PermissionAuthorizer().require(principal("default", "guest"), "table.write")
    assert refused.value.message == (
        "this requires the permission table.write, but ada in account acme has default, guest: "
        "ask for one of the roles administrator, developer, reconcile-worker"
    )
    assert refused.value.key == "permission.missing"
    assert refused.value.params == {"permission": "table.write", "subject": "ada", "roles": "default, guest"}


def test_denial_for_a_platform_caller_mentions_the_platform():
    with pytest.raises(PermissionDenied, match="ada on the platform has platform-admin: no role grants it"):
        PermissionAuthorizer().require(principal("platform-admin", account=""), "moon.write")


@pytest.mark.behavior(79)
def test_empty_principal_is_unauthenticated_rather_than_denied():
    with pytest.raises(Unauthorized) as refused:
        PermissionAuthorizer().require(NOBODY, "table.read")
    assert refused.value.key == "principal.missing"


def test_call_without_a_declared_permission_is_denied():
    with pytest.raises(PermissionDenied):
        PermissionAuthorizer().require(principal("administrator"))


def test_platform_principal_is_not_the_empty_principal():
    assert principal("platform-admin", account="").is_platform
    assert not principal("administrator").is_platform
    assert NOBODY.is_nobody
    assert not NOBODY.is_platform


def test_principals_with_platform_roles_are_hashable() -> None:
    admitted = Admission(Roles(), None).admit(
        Principal("ops", "", frozenset({"platform-admin", "unknown"}), frozenset())
    )
    assert (hash(admitted) is not None, admitted.roles) == (True, frozenset({"platform-admin"}))
