"""Accounts own catalogs. The platform sees all accounts, an account only itself."""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import fields
from typing import Final

from skiway.config.server import Quota
from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.foundation import resources
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import ACCOUNT
from skiway.metastore.records.names import exact_name, refuse_secrets
from skiway.metastore.records.realm import PLATFORM, Realm, kind_name
from skiway.metastore.records.repository import listed
from skiway.metastore.records.updates import Claim, counted, once, remove_empty
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.storage import Pointer

QUOTAS: Final = tuple(f"{whose}.{each.name}" for whose in ("caller", "account") for each in fields(Quota))
MIN_QUOTA: Final = 1.0
"""An account with less could not call any more, and so not raise it again."""
# Ids are part of keys and of paths in a bucket, so only plain characters are allowed. Three ids are reserved.
PLAIN_ID = re.compile(r"(?!by-id$|by-name$)[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def create(realm: Realm, request: v1.CreateAccountRequest) -> v1.CreateAccountResponse:
    """Create an account with the requested id, or with a random one."""
    if realm.account_id != PLATFORM:
        raise failure(PermissionDenied, "account.platform", account_id=realm.account_id)
    wanted = _normal(realm, request)
    claim = Claim(realm, "CreateAccount", request.idempotency.key, wanted, v1.CreateAccountResponse)
    now, account_id = realm.now(), wanted.account_id.id or realm.ids()
    account = v1.Account(
        resource_id=v1.ResourceId(account_id=account_id, id=account_id, kind=v1.RK_ACCOUNT),
        display_name=wanted.spec.display_name,
        description=wanted.spec.description if wanted.spec.HasField("description") else None,
        tags=wanted.spec.tags,
        quotas=wanted.spec.quotas,
        created_at=now,
        updated_at=now,
    )
    return once(claim, lambda: claim.created(realm.all(ACCOUNT), account))


def get(realm: Realm, request: v1.GetAccountRequest) -> v1.GetAccountResponse:
    """Return the account and its stored version."""
    account = realm.by_id(ACCOUNT, _visible_id(realm, request.account_id, v1.RK_ACCOUNT, field="account_id"))
    return v1.GetAccountResponse(account=account.value, meta=account.meta)


def list_(realm: Realm, request: v1.ListAccountsRequest) -> v1.ListAccountsResponse:
    """List accounts by name: all of them for the platform, otherwise the caller's own."""
    if realm.account_id == PLATFORM:
        accounts, page = listed(realm.all(ACCOUNT), keys.account_name(), request.page)
        return v1.ListAccountsResponse(accounts=accounts, page=page)
    own = realm.all(ACCOUNT).entry(realm.stores.pointers.get(keys.account(realm.account_id)))
    found = [own.value] if own else []
    return v1.ListAccountsResponse(accounts=found, page=v1.PageResponse(total_size=len(found)))


def _normal(realm: Realm, request: v1.CreateAccountRequest) -> v1.CreateAccountRequest:
    """The request without its idempotency key, with names as they are stored."""
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    wanted = v1.CreateAccountRequest(spec=request.spec)
    wanted.spec.display_name = exact_name(request.spec.display_name, resource="account")
    _check_spec(realm, request.spec, {"tags", "quotas"})
    if request.HasField("account_id"):
        wanted.account_id.CopyFrom(v1.ResourceId(id=_chosen_id(request.account_id), kind=v1.RK_ACCOUNT))
    return wanted


def _check_spec(_: Realm, spec: v1.AccountSpec, paths: Set[str]) -> None:
    if "tags" in paths:
        refuse_secrets(spec.tags, field="tags")
    for name, value in spec.quotas.items() if "quotas" in paths else ():
        if name not in QUOTAS:
            raise invalid_field("quotas", name, f"use {', '.join(QUOTAS)}")
        is_rate = name.endswith(".per_second")
        if not (math.isfinite(value) and value >= MIN_QUOTA and (is_rate or value.is_integer())):
            wanted = "use a number from 1 on" if is_rate else "use a whole number from 1 on"
            raise invalid_field(f"quotas.{name}", f"{value:g}", wanted)


def _chosen_id(given: v1.ResourceId) -> str:
    if given.kind not in (v1.RK_UNSPECIFIED, v1.RK_ACCOUNT):
        raise failure(InvalidArgument, "account.id.kind.invalid", field="account_id", found=kind_name(given.kind))
    if not given.id.strip():
        raise failure(InvalidArgument, "account.id.id.required", field="account_id")
    if not PLAIN_ID.fullmatch(given.id):
        wanted = "use up to 64 of A-Z, a-z, 0-9, _, - and, not first, dots; by-id, by-name and _system are reserved"
        raise invalid_field("account_id", given.id, wanted)
    return given.id


def _visible_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    if given.kind not in (v1.RK_UNSPECIFIED, kind):
        raise failure(InvalidArgument, "kind", field=field, found=kind_name(given.kind), wanted=kind_name(kind))
    if not given.id.strip():
        raise failure(InvalidArgument, "field", field=field)
    if realm.account_id not in (PLATFORM, given.id):
        raise failure(NotFound, "account", resource="account", id=given.id)
    return given.id


def _remove(realm: Realm, _: v1.DeleteAccountRequest, pointer: Pointer, account: v1.Account | None) -> None:
    account_id, count = keys.last_segment(pointer.key), realm.stores.pointers.count

    def held() -> str:
        catalogs, connectors = count(keys.catalog_name(account_id)), count(keys.connector_name(account_id))
        return counted([(catalogs, "catalog"), (connectors, "connector")])

    remove_empty(realm, realm.all(ACCOUNT), pointer, account, held=held)


CALLS: Final = Calls(resources.ACCOUNT, ACCOUNT, normal=_check_spec, id_of=_visible_id, remove=_remove)
update, delete = CALLS.update, CALLS.delete
