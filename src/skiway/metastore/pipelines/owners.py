"""The owners of pipelines: whose rights their runs have.

The rights are those of the time of the run: the grants of the owner, the policies that restrict it, and its roles, if the server
knows them. With tokens it does: they are in its file. With OIDC it does not: roles are in the tokens of the identity provider, and
nobody presents one when a job starts. Then the roles are those that the owner had when it declared the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from skiway.errors import PreconditionFailed
from skiway.metastore.records.access import AccessDecision, grantees_of
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.security import Roles

__all__ = ["CurrentRoles", "Owner", "owner_of", "owner_realm"]

CurrentRoles = Callable[[str, str], frozenset[str] | None]
"""The roles that a user has now, by the id of the account and the name; None for one who has no access any more."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who declared a pipeline, as its runs know it."""

    subject: str
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    claims_json: str = "{}"


def owner_of(realm: Realm, pipeline: v1.Pipeline, current_roles: CurrentRoles | None) -> Owner:
    """The owner of a pipeline, with its roles of now if they are known. Raise if it has lost its access."""
    stored, name = pipeline.owner, pipeline.display_name
    if not stored.subject:
        raise PreconditionFailed(f"pipeline {name} has no owner: apply its files again", key="pipeline.owner.missing")
    roles = frozenset(stored.roles)
    if current_roles is not None:
        found = current_roles(realm.account_id, stored.subject)
        if found is None:
            raise PreconditionFailed(
                f"the owner of pipeline {name}, {stored.subject}, has no valid token any more, so it runs no longer: "
                "let another user apply its files",
                key="pipeline.owner.revoked",
            )
        roles = found
    return Owner(stored.subject, roles, frozenset(stored.groups), stored.claims_json)


def owner_realm(realm: Realm, owner: Owner) -> Realm:
    """The realm of an account, as the owner sees it."""
    permissions = Roles().permissions(owner.roles)
    subject = Subject(owner.subject, owner.roles, owner.groups, json.loads(owner.claims_json or "{}"))
    policies = CallerPolicies(lambda: realm.stores, realm.account_id, subject)
    access = AccessDecision(
        lambda: realm.stores,
        realm.account_id,
        allows=permissions.__contains__,
        grantees=grantees_of(owner.subject, sorted(owner.roles)),
        policies=policies,
    )
    return replace(realm, access=access, policies=policies, caller=owner.subject, administers=False)
