"""Connectors: upstreams whose tables are mirrored into a catalog, and the jobs that do so.

Functions that change credentials get the secrets store that holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase

from google.protobuf.message import Message

from skiway.errors import InvalidArgument
from skiway.metastore import jobs
from skiway.metastore.connectors.credentials import (
    NewSecret,
    check_credentials,
    forget,
    keep_masked,
    new_secret,
    refuse_old_secrets,
    refuse_secrets_in,
    remove_all,
    shown,
)
from skiway.metastore.connectors.specs import (
    DESTINATION_PAIRS,
    check,
    check_access,
    check_columns,
    resolve_destination,
)
from skiway.metastore.jobs.api import rescheduled, scheduled
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import ACCOUNT, CONNECTOR
from skiway.metastore.records.names import dotted, exact_name, normal_path, normal_text
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.repository import Stored, listed, sliced
from skiway.metastore.records.updates import Claim, copy_field, inside, masked_paths, once, retrying
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.redaction import without_secrets
from skiway.security.source_access import SourceAccess
from skiway.storage import Pointer

PLAIN = ("display_name", "description", "kind", "uri", "properties", "source", "destination", "policy", "copy")
AUTH = ("auth.scheme", "auth.header_hints", "auth.properties")
REQUIRED = frozenset(("display_name", "kind", "uri"))
PARTS: Mapping[str, type[Message]] = {
    "source": v1.ConnectorSource,
    "destination": v1.ConnectorDestination,
    "policy": v1.ConnectorPolicy,
}
MUTABLE = (
    *PLAIN,
    *(f"{part}.{field.name}" for part, message in PARTS.items() for field in message.DESCRIPTOR.fields),
    *AUTH,
    "auth",
    "auth.credentials",
    "state",
)


def create(
    realm: Realm, request: v1.CreateConnectorRequest, *, secrets: SecretsStore, access: SourceAccess | None = None
) -> v1.CreateConnectorResponse:
    """Create a connector, which is active. With `access`, it must be for a source that may be opened."""
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = updates.copied(request.spec)
    spec.display_name = exact_name(spec.display_name, resource="connector")
    auth = v1.ConnectorAuth(properties=spec.auth.properties, header_hints=spec.auth.header_hints)
    refuse_secrets_in(
        v1.Connector(uri=spec.uri.strip(), properties=spec.properties, auth=auth)
    )  # before anything is stored
    if spec.auth.HasField("credentials"):
        check_credentials(spec.auth.credentials, access)
    claim = Claim(
        realm, "CreateConnector", request.idempotency.key, _without_secrets(request), v1.CreateConnectorResponse
    )
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim, secrets, access)))


def get(realm: Realm, request: v1.GetConnectorRequest) -> v1.GetConnectorResponse:
    """Return the connector and its stored version."""
    connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    connector = realm.by_id(CONNECTOR, connector_id)
    return v1.GetConnectorResponse(connector=shown(connector.value), meta=connector.meta)


def list_(realm: Realm, request: v1.ListConnectorsRequest) -> v1.ListConnectorsResponse:
    """List the account's connectors by name, of one kind if the request names it."""
    prefix = keys.connector_name(realm.account_id)
    repository = realm.all(CONNECTOR)
    if request.kind == v1.CK_UNSPECIFIED:
        found, page = listed(repository, prefix, request.page)
        return v1.ListConnectorsResponse(connectors=map(shown, found), page=page)
    # The kind of a damaged connector is unknown, so it is listed under every kind.
    matching = [entry for entry in repository.entries(prefix) if entry.value.damage or entry.value.kind == request.kind]
    some, page = sliced(
        matching, request.page, listing=f"{prefix}:{request.kind}", name=lambda stored: stored.pointer.key
    )
    return v1.ListConnectorsResponse(connectors=[shown(each.value) for each in some], page=page)


def find(realm: Realm, connector_id: str) -> Stored[v1.Connector] | None:
    """The connector with this id, or None."""
    return realm.all(CONNECTOR).find(keys.connector(realm.account_id, connector_id)) if connector_id else None


def update(
    realm: Realm, request: v1.UpdateConnectorRequest, *, secrets: SecretsStore, access: SourceAccess | None = None
) -> v1.UpdateConnectorResponse:
    """Update the masked fields of a connector. Credentials that are masked but not given are removed.

    Stored credentials are for the stored address: a change of kind, address, properties or auth needs them again. With `access`,
    a new source must be one that may be opened.
    """
    connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    paths = masked_paths(request.update_mask, allowed=MUTABLE, resource="connector")
    spec = updates.copied(request.spec)
    if "display_name" in paths and spec.HasField("display_name"):
        spec.display_name = exact_name(spec.display_name, resource="connector")
    has_credentials = bool(paths & {"auth", "auth.credentials"})
    if has_credentials and spec.auth.HasField("credentials"):
        check_credentials(spec.auth.credentials, access)
    with _secret(realm, secrets, connector_id, spec if has_credentials else v1.ConnectorSpec()) as secret:

        def edit(connector: v1.Connector) -> None:
            _edit(realm, connector, spec, paths, keeping=REQUIRED, access=access)
            if has_credentials:
                connector.auth.secret_id = secret.secret_id if secret else ""

        def write(current: Stored[v1.Connector], desired: v1.Connector) -> Stored[v1.Connector]:
            more = [*rescheduled(realm, current.value, desired), *([secret.taken] if secret else [])]
            written = realm.all(CONNECTOR).update(current, desired, also=lambda _: more)
            if has_credentials:
                forget(realm, secrets, current.value)
            return written

        updated = updates.update(realm, CONNECTOR, connector_id, request.precondition, edit, write)
    return v1.UpdateConnectorResponse(connector=shown(updated.value), meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteConnectorRequest, *, secrets: SecretsStore) -> v1.DeleteConnectorResponse:
    """Delete a connector, its credentials and its unfinished jobs. The tables that it mirrored stay."""
    connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    key = keys.connector(realm.account_id, connector_id)

    def remove(pointer: Pointer, value: v1.Connector | None) -> None:
        also = scheduled(realm, keys.schedule(realm.account_id, connector_id))
        realm.all(CONNECTOR).delete(pointer, value, also=also)

    meta = updates.delete(realm.all(CONNECTOR), key, connector_id, request.precondition, remove)
    remove_all(realm, secrets, connector_id)
    jobs.cancel_all(realm, connector_id)
    return v1.DeleteConnectorResponse(meta=meta)


def trigger(realm: Realm, request: v1.TriggerReconcileRequest) -> v1.TriggerReconcileResponse:
    """Enqueue a job that mirrors the connector's tables and then profiles them; see `jobs.enqueue`."""
    work = v1.Job(scope=scope(request), full_rescan=request.full_rescan)
    if request.HasField("table_id"):
        work.table_id.CopyFrom(request.table_id)
    else:
        work.connector_id.CopyFrom(request.connector_id)
    job = jobs.enqueue(realm, work)
    return v1.TriggerReconcileResponse(job_id=job.job_id)


def capture_mode(request: v1.SyncCaptureRequest) -> v1.CaptureMode.ValueType:
    """The pass that a capture runs."""
    return v1.CAP_STATS_ONLY_ASYNC if request.include_statistics else v1.CAP_METADATA_ONLY_CORE


def scope(request: v1.TriggerReconcileRequest | v1.SyncCaptureRequest) -> v1.JobScope:
    """The part of the connector that a request covers; equal for equivalent requests."""
    field = "destination_namespace_paths"
    paths = sorted({normal_path(each.segments, field=field) for each in request.destination_namespace_paths})
    check_columns(request.destination_table_columns, field="destination_table_columns")
    return v1.JobScope(
        namespaces=[v1.NamespacePath(segments=path) for path in paths],
        table=normal_text(request.destination_table_display_name),
        columns=sorted(set(request.destination_table_columns)),
    )


def selects(source: v1.ConnectorSource, namespace: tuple[str, ...], table: str) -> bool:
    """Whether a connector mirrors a table of its upstream."""
    if source.HasField("table"):
        return table == source.table
    names = (table, dotted((*namespace, table)))

    def matches(pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names)

    included = not source.include_tables or any(map(matches, source.include_tables))
    return included and not any(map(matches, source.exclude_tables))


def _create(
    realm: Realm,
    spec: v1.ConnectorSpec,
    claim: Claim[v1.CreateConnectorResponse],
    secrets: SecretsStore,
    access: SourceAccess | None,
) -> v1.CreateConnectorResponse:
    account = realm.by_id(ACCOUNT, realm.account_id)
    now = realm.now()
    connector = v1.Connector(
        resource_id=resource_id(realm, realm.ids(), v1.RK_CONNECTOR),
        state=v1.CS_ACTIVE,
        created_at=now,
        updated_at=now,
    )
    _edit(realm, connector, spec, {*PLAIN, "auth"}, keeping=frozenset(), access=access)
    with _secret(realm, secrets, connector.resource_id.id, spec) as secret:
        connector.auth.secret_id = secret.secret_id if secret else ""
        due = rescheduled(realm, None, connector)
        taken = (secret.taken,) if secret else ()
        batch = *inside(account.pointer), *taken, *due
        return claim.created(realm.all(CONNECTOR), connector, batch, shown=shown)


def _secret(
    realm: Realm, secrets: SecretsStore, connector_id: str, spec: v1.ConnectorSpec
) -> AbstractContextManager[NewSecret | None]:
    """Store the credentials of the spec; None if it has none."""
    if not spec.auth.HasField("credentials"):
        return nullcontext()
    data = spec.auth.credentials.SerializeToString(deterministic=True)
    return new_secret(realm, secrets, connector_id, data=data)


def _edit(
    realm: Realm,
    connector: v1.Connector,
    spec: v1.ConnectorSpec,
    paths: set[str],
    *,
    keeping: frozenset[str],
    access: SourceAccess | None,
) -> None:
    """Copy the fields in `paths`, without clearing any of `keeping`, and validate the result."""
    before = updates.copied(connector)
    fields = {*paths, *(AUTH if "auth" in paths else ())} - {"auth", "auth.credentials", "state"}
    for path in fields:
        copy_field(spec, connector, path, required=path in keeping)
    if "state" in paths:
        _set_state(connector, spec)
    if connector.uri == without_secrets(before.uri):
        connector.uri = before.uri
    keep_masked(connector.properties, before.properties, field="properties")
    keep_masked(connector.auth.properties, before.auth.properties, field="auth.properties")
    keep_masked(connector.auth.header_hints, before.auth.header_hints, field="auth.header_hints")
    check(connector, before)
    refuse_old_secrets(connector, before, replaced=bool(paths & {"auth", "auth.credentials"}))
    if access is not None and paths & {"kind", "uri", "properties"}:
        check_access(connector, access.of_account(realm.account_id))
    if any(path.startswith(("destination", "copy")) for path in paths):
        _forget_replaced(connector.destination, paths)
        resolve_destination(realm, connector.destination, copied=connector.HasField("copy"))


def _set_state(connector: v1.Connector, spec: v1.ConnectorSpec) -> None:
    if spec.state not in (v1.CS_ACTIVE, v1.CS_PAUSED):
        found = v1.ConnectorState.Name(spec.state) if spec.state in v1.ConnectorState.values() else str(spec.state)
        wanted = "set CS_ACTIVE or CS_PAUSED; to delete the connector, call DeleteConnector"
        raise failure(InvalidArgument, "field.invalid", field="state", found=found, wanted=wanted)
    connector.state = spec.state


def _forget_replaced(destination: v1.ConnectorDestination, paths: set[str]) -> None:
    """Clear the old name of a destination whose id is new, and the old id of one whose name is new."""
    for pair in DESTINATION_PAIRS:
        given = [name for name in pair if f"destination.{name}" in paths]
        if len(given) == 1:
            (other,) = set(pair) - set(given)
            destination.ClearField(other)  # type: ignore[arg-type]


def _without_secrets(request: v1.CreateConnectorRequest) -> v1.ConnectorSpec:
    """The request as it is compared with later requests with the same idempotency key.

    Credentials are part of the comparison, but must not be guessed from what is stored, so a slow digest replaces them.
    """
    compared = updates.copied(request.spec)
    compared.display_name = exact_name(compared.display_name, resource="connector")
    if compared.auth.HasField("credentials"):
        data = compared.auth.credentials.SerializeToString(deterministic=True)
        key = request.idempotency.key.strip().encode()
        digest = hashlib.scrypt(data, salt=key, n=2**14, r=8, p=1) if key else b""
        compared.auth.credentials.Clear()
        compared.auth.credentials.bearer.token = digest.hex()
    return compared
