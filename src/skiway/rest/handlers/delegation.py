"""Delegated access to files: vended credentials and remote signing.

A client says with the header `x-iceberg-access-delegation` what it can use. The server chooses: credentials if it issues any
for this access, else signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from skiway.errors import NotFound, PermissionDenied, Unsupported
from skiway.metastore.managed import ManagedTable
from skiway.metastore.managed.locations import folder_of_table
from skiway.metastore.resources import hierarchy
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import FrozenBody, decoded
from skiway.rest.calls import Lake, RestRequest, RestResponse, json_response
from skiway.vending import CredentialsProvider, S3Request, StagedTable, TableAccess, table_access

HEADER: Final = "x-iceberg-access-delegation"
VENDED: Final = "vended-credentials"
SIGNED: Final = "remote-signing"


@dataclass(frozen=True, slots=True)
class Delegated:
    """What a client receives in order to access files: properties, and credentials with the prefix of their locations.

    `version` changes when the client needs other properties or credentials.
    """

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    version: str = ""


NOTHING: Final = Delegated()


def vends_credentials(lake: Lake) -> bool:
    """Whether the server issues credentials."""
    return bool(lake.vending.credentials)


def signs(lake: Lake) -> bool:
    """Whether the server signs requests."""
    return lake.vending.signer is not None


def delegated_to(request: RestRequest, table: v1.Table) -> Delegated:
    """The access to the files of a table that the client asks for; nothing for tables of connectors."""
    wanted = _wanted(request)
    if not wanted or not table.metadata_location:
        return NOTHING
    access = _access(request, table)
    return NOTHING if access is None else _delegated(request, table, access, wanted)


def delegated_to_creator(request: RestRequest, made: ManagedTable) -> Delegated:
    """The same for a new or staged table. If a policy on its namespace restricts the creator, it gets nothing."""
    wanted = _wanted(request)
    if not wanted:
        return NOTHING
    try:
        access = table_access(request.realm, request.decision, made.table, made.metadata.location)
    except PermissionDenied:
        return NOTHING
    if access is None:
        return NOTHING
    staged = None if made.metadata_location else _staged(request, made)
    return _delegated(request, made.table, access, wanted, staged=staged)


def credentials(request: RestRequest) -> RestResponse:
    """Issue new credentials for a table."""
    if not vends_credentials(request.lake):
        raise _unsupported("issue credentials", "warehouse.vending")
    access = _access(request, _managed(request))
    provider = None if access is None else _provider(request, access)
    issued = None if access is None or provider is None else provider.issue(access)
    if access is None or issued is None:
        return json_response({"storage-credentials": []})
    request.details.update(delegated=VENDED, access=access.word)
    found = {"prefix": access.prefix, "config": {**request.lake.warehouse.shown, **issued.properties}}
    return json_response({"storage-credentials": [found]})


class SignBody(FrozenBody):
    """A request to sign. Properties that the client sends back are not needed."""

    region: str
    uri: str
    method: str
    headers: dict[str, tuple[str, ...]]
    body: str | None = None
    provider: str = "s3"


def sign(request: RestRequest) -> RestResponse:
    """Sign a request to S3, if it concerns the files of the table in the path and the caller may do what it does."""
    signer = request.lake.vending.signer
    if signer is None:
        raise _unsupported("sign requests", "warehouse.vending.remote_signing")
    wanted = decoded(request.body, SignBody)
    access = _signing_access(request)
    if wanted.provider != "s3" or access is None or access.folder.scheme != "s3":
        raise Unsupported("only requests to S3 are signed, for tables in S3", key="signing.provider")
    given = S3Request(wanted.method, wanted.uri, wanted.region, wanted.headers, wanted.body)
    request.details.update(delegated=SIGNED, access=access.word, method=wanted.method[:20])
    signed = signer.sign(given, access)
    request.details["object"] = signed.key[:1000]
    headers = {name: [value] for name, value in signed.headers.items()}
    # Clients may use the signature again for the same object: which bytes they read is not signed.
    kept = "private" if wanted.method in ("GET", "HEAD") else "no-cache"
    answer = json_response({"uri": wanted.uri, "headers": headers})
    return RestResponse(answer.status, answer.body, {"cache-control": kept})


def _wanted(request: RestRequest) -> frozenset[str]:
    given = request.headers.get(HEADER, "").lower().split(",")
    return frozenset(each.strip() for each in given) & {VENDED, SIGNED}


def _access(request: RestRequest, table: v1.Table) -> TableAccess | None:
    folder = folder_of_table(request.realm, request.lake.warehouse, table)
    return table_access(request.realm, request.decision, table, folder)


def _managed(request: RestRequest) -> v1.Table:
    """The table in the path. The files of other tables belong to their sources."""
    return resolve.readable(request).managed_table()


def _delegated(
    request: RestRequest, table: v1.Table, access: TableAccess, wanted: frozenset[str], *, staged: str | None = None
) -> Delegated:
    vending, path = request.lake.vending, _path(request, table)
    provider = _provider(request, access) if VENDED in wanted else None
    issued = None if provider is None else provider.issue(access)
    if provider is not None and issued is not None:
        request.details.update(delegated=VENDED, access=access.word)
        config = {**request.lake.warehouse.shown, **issued.properties}
        if issued.expires_at is not None:
            config[issued.renewal_property] = f"{path}/credentials"
        window = int(request.realm.clock().timestamp() * 2 // provider.lifetime_s) if provider.lifetime_s else 0
        version = f" {VENDED} {access.word} {access.caller} {window}"
        return Delegated(config, [{"prefix": access.prefix, "config": config}], version)
    if vending.signer is None or SIGNED not in wanted or access.folder.scheme != "s3":
        return NOTHING
    request.details.update(delegated=SIGNED, access=access.word)
    endpoint = f"{path}/sign" + (f"?staged={staged}" if staged else "")
    # PyIceberg and older versions of Iceberg use the properties with the prefix s3, newer versions those without.
    signer = {"s3.remote-signing-enabled": "true", "s3.signer": "S3V4RestSigner"}
    endpoints = {"s3.signer.endpoint": endpoint, "signer.endpoint": endpoint}
    return Delegated({**request.lake.warehouse.shown, **signer, **endpoints}, (), f" {SIGNED}")


def _provider(request: RestRequest, access: TableAccess) -> CredentialsProvider | None:
    """The provider of credentials for the object store of a table, if there is one."""
    return request.lake.vending.credentials.get(access.folder.scheme)


def _path(request: RestRequest, table: v1.Table) -> str:
    """The path of the table below the address of the catalog."""
    names = (request.names["prefix"], request.names["namespace"], table.display_name)
    prefix, namespace, name = (quote(each, safe="") for each in names)
    return f"v1/{prefix}/namespaces/{namespace}/tables/{name}"


def _staged(request: RestRequest, made: ManagedTable) -> str | None:
    tokens, table = request.lake.vending.staged, made.table
    if tokens is None:
        return None
    realm = request.realm
    staged = StagedTable(realm.account_id, realm.caller, table.namespace_id.id, made.id, made.metadata.location)
    return tokens.token(staged)


def _signing_access(request: RestRequest) -> TableAccess | None:
    tokens = request.lake.vending.staged
    if "staged" not in request.query or tokens is None:
        return _access(request, _managed(request))
    staged = tokens.read(request.query["staged"], request.realm)
    try:
        committed = hierarchy.table(request.realm, v1.ResourceId(id=staged.table_id)).value
    except NotFound:
        namespace = hierarchy.namespace(request.realm, v1.ResourceId(id=staged.namespace_id)).value
        table = v1.Table(catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id)
        table.resource_id.id, table.display_name = staged.table_id, request.names["table"]
        if request.decision is not None:
            request.decision.require_inside("table.write", table)
        return table_access(request.realm, request.decision, table, staged.folder)
    return _access(request, committed)


def _unsupported(what: str, setting: str) -> Unsupported:
    return Unsupported(
        f"this server does not {what}: use keys of your own, or ask the operator to set {setting}",
        key="vending.off",
    )
