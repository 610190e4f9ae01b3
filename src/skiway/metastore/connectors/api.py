"""Connectors: upstreams whose tables are mirrored into a catalog, and the jobs that do so.

Functions that change credentials get the secrets store that holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Final

from skiway.foundation import resources
from skiway.metastore import jobs
from skiway.metastore.connectors.credentials import (
    check_credentials,
    keep_masked,
    refuse_old_secrets,
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
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.names import dotted, normal_path, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored, listed, sliced
from skiway.metastore.records.secrets import forget, new_secret, remove_all
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.redaction import without_secrets
from skiway.security.source_access import SourceAccess
from skiway.storage import Operation

AUTH: Final = ("auth.scheme", "auth.header_hints", "auth.properties")
CREDENTIALS: Final = frozenset(("auth", "auth.credentials"))
"""The paths that set the credentials, or remove them."""


def calls(secrets: SecretsStore, access: SourceAccess | None = None) -> Calls[v1.Connector]:
    """The calls for connectors. With `access`, a new source must be one that may be opened.

    Credentials that are in the mask of an update but not given are removed. Stored credentials are for the stored address: a
    change of kind, address, properties or auth needs them again.
    """

    def normal(_: Realm, spec: v1.ConnectorSpec, paths: Set[str]) -> None:
        if not paths & CREDENTIALS:
            spec.auth.ClearField("credentials")
        elif spec.auth.HasField("credentials"):
            check_credentials(spec.auth.credentials, access)

    def edit(
        realm: Realm, connector: v1.Connector, spec: v1.ConnectorSpec, paths: Set[str], required: Set[str]
    ) -> None:
        _edit(realm, connector, spec, paths, required, access)
        if paths & CREDENTIALS:
            connector.auth.secret_id = realm.ids() if spec.auth.HasField("credentials") else ""

    @contextmanager
    def writing(
        realm: Realm, connector: v1.Connector, spec: v1.ConnectorSpec, before: v1.Connector | None
    ) -> Iterator[Iterable[Operation]]:
        operations = rescheduled(realm, before, connector)
        if spec.auth.HasField("credentials"):
            data = spec.auth.credentials.SerializeToString(deterministic=True)
            with new_secret(realm, secrets, connector, data=data) as taken:
                yield (*operations, taken)
        else:
            yield operations
        if before is not None and before.auth.secret_id != connector.auth.secret_id:
            forget(realm, secrets, before)

    def deleted(realm: Realm, connector_id: str) -> None:
        remove_all(realm, secrets, connector_id)
        jobs.cancel_all(realm, connector_id)

    return Calls(
        resources.CONNECTOR,
        CONNECTOR,
        writing=writing,
        shown=shown,
        deleting=lambda realm, own_id: scheduled(realm, keys.schedule(realm.account_id, own_id)),
        deleted=deleted,
        normal=normal,
        compared=_without_secrets,
        edit=edit,
    )


def create(
    realm: Realm, request: v1.CreateConnectorRequest, *, secrets: SecretsStore, access: SourceAccess | None = None
) -> v1.CreateConnectorResponse:
    """Create a connector, which is active."""
    created: v1.CreateConnectorResponse = calls(secrets, access).create(realm, request)
    return created


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


def trigger(realm: Realm, request: v1.TriggerReconcileRequest) -> v1.TriggerReconcileResponse:
    """Enqueue a job that mirrors the connector's tables and then profiles them; see `jobs.enqueue`."""
    work = v1.Job(scope=scope(request), full_rescan=request.full_rescan, dry_run=request.dry_run)
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


def _edit(
    realm: Realm,
    connector: v1.Connector,
    spec: v1.ConnectorSpec,
    paths: Set[str],
    required: Set[str],
    access: SourceAccess | None,
) -> None:
    """Copy the fields in `paths`, and validate the result."""
    before = updates.copied(connector)
    if not connector.state:
        connector.state = v1.CS_ACTIVE
    elif "state" in paths:
        _set_state(connector, spec)
    fields = {*paths, *(AUTH if "auth" in paths else ())} - {*CREDENTIALS, "state"}
    updates.copy_fields(connector, spec, fields, required)
    if connector.uri == without_secrets(before.uri):
        connector.uri = before.uri
    keep_masked(connector.properties, before.properties, field="properties")
    keep_masked(connector.auth.properties, before.auth.properties, field="auth.properties")
    keep_masked(connector.auth.header_hints, before.auth.header_hints, field="auth.header_hints")
    check(connector, before)
    refuse_old_secrets(connector, before, replaced=bool(paths & CREDENTIALS))
    if access is not None and paths & {"kind", "uri", "properties"}:
        check_access(connector, access.of_account(realm.account_id))
    if any(path.startswith(("destination", "copy")) for path in paths):
        _forget_replaced(connector.destination, paths)
        resolve_destination(realm, connector.destination, copied=connector.HasField("copy"))


def _set_state(connector: v1.Connector, spec: v1.ConnectorSpec) -> None:
    if spec.state not in (v1.CS_ACTIVE, v1.CS_PAUSED):
        found = v1.ConnectorState.Name(spec.state) if spec.state in v1.ConnectorState.values() else str(spec.state)
        raise invalid_field("state", found, "set CS_ACTIVE or CS_PAUSED; to delete the connector, call DeleteConnector")
    connector.state = spec.state


def _forget_replaced(destination: v1.ConnectorDestination, paths: Set[str]) -> None:
    """Clear the old name of a destination whose id is new, and the old id of one whose name is new."""
    for pair in DESTINATION_PAIRS:
        given = [name for name in pair if f"destination.{name}" in paths]
        if len(given) == 1:
            (other,) = set(pair) - set(given)
            destination.ClearField(other)  # type: ignore[arg-type]


def _without_secrets(request: v1.CreateConnectorRequest, spec: v1.ConnectorSpec) -> v1.ConnectorSpec:
    """The spec as it is compared with that of later requests with the same idempotency key.

    Credentials are part of the comparison, but must not be guessed from what is stored, so a slow digest replaces them.
    """
    compared = updates.copied(spec)
    if compared.auth.HasField("credentials"):
        data = compared.auth.credentials.SerializeToString(deterministic=True)
        key = request.idempotency.key.strip().encode()
        digest = hashlib.scrypt(data, salt=key, n=2**14, r=8, p=1) if key else b""
        compared.auth.credentials.Clear()
        compared.auth.credentials.bearer.token = digest.hex()
    return compared
