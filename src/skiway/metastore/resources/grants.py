"""Grants: privileges of users and roles on catalogs, namespaces, tables and views. `records.access` applies them."""

from __future__ import annotations

import re
from typing import Final

from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.kinds import GRANT
from skiway.metastore.records.names import MAX_NAME
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored, listed, sliced
from skiway.metastore.records.updates import retrying
from skiway.metastore.resources.hierarchy import named_object
from skiway.model import v1

GRANTEE: Final = re.compile(r"(user|role):[^\x00-\x1f\x7f]+")


def add(realm: Realm, request: v1.AddGrantRequest) -> v1.AddGrantResponse:
    """Grant a privilege on an object, in place of the one that the grantee has on it."""
    object_id = named_object(realm, request.object_id, field="object_id").resource_id
    if request.privilege not in (v1.PV_READ, v1.PV_WRITE, v1.PV_MANAGE):
        raise invalid_field("privilege", str(request.privilege), "choose PV_READ, PV_WRITE or PV_MANAGE")
    grantee = _grantee(request.grantee)

    def attempt() -> Stored[v1.Grant]:
        repository, now = realm.all(GRANT), realm.now()
        wanted = v1.Grant(
            object_id=object_id, grantee=grantee, privilege=request.privilege, created_at=now, updated_at=now
        )
        current = repository.find(GRANT.key(wanted))
        if current is None:
            return repository.create(wanted)
        wanted.created_at.CopyFrom(current.value.created_at)
        return current if current.value.privilege == request.privilege else repository.update(current, wanted)

    stored = retrying(attempt)
    return v1.AddGrantResponse(grant=stored.value, meta=stored.meta)


def list_(realm: Realm, request: v1.ListGrantsRequest) -> v1.ListGrantsResponse:
    """List the grants on an object or all objects, to a grantee or all of them."""
    repository = realm.all(GRANT)
    if not request.HasField("object_id"):
        grantee = _grantee(request.grantee) if request.grantee else ""
        prefix = keys.grant_of(realm.account_id, grantee) if grantee else keys.grant(realm.account_id)
        grants, page = listed(repository, prefix, request.page)
        return v1.ListGrantsResponse(grants=grants, page=page)
    object_id = named_object(realm, request.object_id, field="object_id").resource_id.id
    prefix = keys.grant(realm.account_id, object_id)
    if not request.grantee:
        grants, page = listed(repository, prefix, request.page)
        return v1.ListGrantsResponse(grants=grants, page=page)
    found = repository.find(keys.grant(realm.account_id, object_id, _grantee(request.grantee)))
    shown, page = sliced([found.value] if found else [], request.page, listing=prefix, name=lambda of: of.grantee)
    return v1.ListGrantsResponse(grants=shown, page=page)


def revoke(realm: Realm, request: v1.RevokeGrantRequest) -> v1.RevokeGrantResponse:
    """Delete a grant. The object may have been deleted already."""
    object_id = local_id(realm, request.object_id, request.object_id.kind, field="object_id")
    key = keys.grant(realm.account_id, object_id, _grantee(request.grantee))
    meta = updates.delete(realm.all(GRANT), key, request.grantee, v1.Precondition())
    return v1.RevokeGrantResponse(meta=meta)


def _grantee(text: str) -> str:
    """A grantee as it is stored. Names of roles are in lower case, as everywhere."""
    if not GRANTEE.fullmatch(text) or len(text) > MAX_NAME:
        raise invalid_field("grantee", repr(text[:100]), "give user:<subject> or role:<name>, such as user:ada")
    return text.lower() if text.startswith("role:") else text
