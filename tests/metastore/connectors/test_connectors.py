"""Connectors: validation of their specs, and secrecy of their credentials."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.mirrors import connector, spec
from metastore.resource_factory import ResourceFactory, behavior, expect_error, key, mask, names
from skiway.config.source_access import AddressRule
from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unavailable,
)
from skiway.metastore import Realm, connectors, gc
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.reconcile.upstream import upstream
from skiway.metastore.records import keys, updates
from skiway.metastore.records.kinds import CONNECTOR, IDEMPOTENCY
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import accounts, namespaces
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.security.source_access import SourceAccess
from skiway.storage import open_stores
from storage.homes import Clock

TOKEN = "hunter2-is-not-a-good-token"
BEARER = v1.ConnectorCredentials(bearer=v1.BearerToken(token=TOKEN))
OTHER = v1.ConnectorCredentials(bearer=v1.BearerToken(token="another"))
WITH_TOKEN = v1.ConnectorAuthSpec(scheme="oauth2", credentials=BEARER)


CLOSED = SourceAccess(local_roots=("/srv/data",), addresses=(AddressRule.parsed("public"),), for_callers=True)


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


def stored_secrets(secrets: MemorySecrets) -> list[bytes]:
    """All stored secrets."""
    return list(secrets._secrets.values())


def create(factory: ResourceFactory, secrets: Any, **more: Any) -> v1.CreateConnectorResponse:
    return connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec(factory, **more)), secrets=secrets)


def update(factory: ResourceFactory, secrets: Any, of: v1.Connector, *paths: str, **request: Any) -> v1.Connector:
    precondition = request.pop("precondition", None)
    request_ = v1.UpdateConnectorRequest(
        connector_id=of.resource_id,
        spec=v1.ConnectorSpec(**request),
        update_mask=mask(*paths),
        precondition=precondition,
    )
    return connectors.calls(secrets).update(factory.home, request_).connector


def get(factory: ResourceFactory, of: v1.Connector) -> v1.Connector:
    return connectors.calls(None).get(factory.home, v1.GetConnectorRequest(connector_id=of.resource_id)).connector


def delete(factory: ResourceFactory, secrets: Any, of: v1.Connector) -> None:
    connectors.calls(secrets).delete(factory.home, v1.DeleteConnectorRequest(connector_id=of.resource_id))


def token(factory: ResourceFactory, secrets: Any, of: v1.Connector) -> str | None:
    stored = connectors.find(factory.home, of.resource_id.id)
    assert stored is not None
    found = credentials(factory.home, secrets, stored.value)
    return None if found is None else found.bearer.token


def store_contents(factory: ResourceFactory) -> bytes:
    """The contents of all pointers and blobs."""
    blobs = [factory.stores.blobs.get(head.uri) for head in factory.stores.blobs.scan()]
    pointers = [f"{each.key} {each.blob_uri}".encode() for each in factory.stores.pointers.scan()]
    return b"\n".join([*blobs, *pointers])


def test_new_connector_is_active_and_can_be_read_and_listed(factory, secrets):
    created = create(factory, secrets, name="my files", description="about").connector
    assert (created.display_name, created.description, created.state) == ("my files", "about", v1.CS_ACTIVE)
    assert created.auth.scheme == "none"
    assert get(factory, created) == created
    assert list(connectors.list_(factory.home, v1.ListConnectorsRequest()).connectors) == [created]
    assert damage(factory.stores) == []
    with expect_error(AlreadyExists, "connector.already.exists", name="my files"):
        create(factory, secrets, name="my files")


@behavior(68)
def test_credentials_are_stored_only_in_the_secrets_store(factory, secrets):
    request = v1.CreateConnectorRequest(spec=spec(factory, auth=WITH_TOKEN), idempotency=key("k"))
    answer = connectors.create(factory.home, request, secrets=secrets)
    assert TOKEN not in str(answer)
    assert TOKEN not in str(connectors.list_(factory.home, v1.ListConnectorsRequest()))
    assert TOKEN.encode() not in store_contents(factory)
    assert stored_secrets(secrets) == [BEARER.SerializeToString()]
    assert token(factory, secrets, answer.connector) == TOKEN
    assert token(factory, secrets, connector(factory, "plain")) is None


@behavior(68)
def test_secret_looking_values_of_older_records_are_masked_and_survive_a_round_trip(factory, secrets):
    created = create(factory, secrets, auth=v1.ConnectorAuthSpec(properties={"region": "eu"})).connector
    repository = factory.home.all(CONNECTOR)
    old = repository.find(keys.connector("a1", created.resource_id.id))
    older = updates.copied(old.value)
    older.uri = "https://host/x?sig=planted"
    older.properties.update({"url": "https://me:planted@host", "plain": "x"})
    older.auth.properties.update({"oauth.session": "planted", "token_type": "jwt"})
    older.auth.header_hints.update({"X-Auth": "planted", "Accept": "json", "X-Plain": "Bearer planted"})
    repository.update(old, older)

    found = connectors.calls(None).get(factory.home, v1.GetConnectorRequest(connector_id=created.resource_id)).connector
    assert "planted" not in str(found)
    assert "planted" not in str(connectors.list_(factory.home, v1.ListConnectorsRequest()))
    assert found.uri == "https://host/x?****"
    assert dict(found.properties) == {"url": "****", "plain": "x"}
    assert dict(found.auth.properties) == {"oauth.session": "****", "region": "eu", "token_type": "****"}
    assert dict(found.auth.header_hints) == {"X-Auth": "****", "Accept": "json", "X-Plain": "****"}

    back = v1.ConnectorAuthSpec(properties=found.auth.properties)
    changed = {"auth": back, "uri": found.uri, "properties": found.properties, "description": "new"}
    update(factory, secrets, created, "auth.properties", "uri", "properties", "description", **changed)
    record = repository.find(keys.connector("a1", created.resource_id.id)).value
    assert dict(record.auth.properties) == {"oauth.session": "planted", "region": "eu", "token_type": "jwt"}
    assert (record.uri, record.description) == (older.uri, "new")
    assert dict(record.properties) == {"url": "https://me:planted@host", "plain": "x"}
    with expect_error(InvalidArgument, "field.invalid", field="auth.properties"):
        update(factory, secrets, created, "auth.properties", auth=v1.ConnectorAuthSpec(properties={"new": "****"}))


@behavior(35)
@pytest.mark.parametrize(
    "name",
    ["password", "s3.secret-access-key", "clientSecret", "my_api_key", "x.access.token", "db-credentials", "apiToken"],
)
def test_secrets_are_rejected_in_readable_fields(factory, secrets, name):
    with expect_error(InvalidArgument, "property.secret", field="properties", property=name):
        create(factory, secrets, properties={name: "x"})
    with expect_error(InvalidArgument, "property.secret", field="auth.properties", property=name):
        create(factory, secrets, auth=v1.ConnectorAuthSpec(properties={name: "x"}))
    with expect_error(InvalidArgument, "property.secret", field="auth.header_hints", property=name):
        create(factory, secrets, auth=v1.ConnectorAuthSpec(header_hints={name: "x"}))


@pytest.mark.parametrize(
    "uri",
    [
        "https://me:planted@host/x",
        "https://planted@host/x",
        "https://host/x?password=planted",
        "https://host/x?a=b&token=planted",
        "https://host/x?sv=1&sig=planted",
        "https://host/x?X-Amz-Signature=planted",
        "https://host/x#access_token=planted",
        "postgresql://me:planted@host/db",
        "postgresql+psycopg://me@host/db?password=planted",
        "postgresql://me@host/db?passfile=/x&sslpassword=planted",
        "jdbc:sqlserver://host;user=me;password=planted",
        "s3://planted:planted@bucket/x",
        "https://host/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.planted/x",
    ],
)
def test_secret_in_the_uri_is_rejected_and_not_echoed(factory, secrets, uri):
    created = create(factory, secrets, name="before").connector
    attempts = (
        lambda: create(factory, secrets, uri=uri),
        lambda: update(factory, secrets, created, "uri", uri=uri),
        lambda: create(factory, secrets, properties={"catalog": uri}),
    )
    for attempt in attempts[: 3 if "://" in uri and ":planted@" in uri else 2]:
        with pytest.raises(InvalidArgument) as raised:
            attempt()
        assert "planted" not in str(raised.value)
    stored = [pointer.blob_uri for pointer in factory.stores.pointers.scan("/")]
    assert not [blob for blob in stored if "planted" in blob]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sig", "planted"),
        ("azure.sas", "planted"),
        ("db.pwd", "planted"),
        ("header.Cookie", "planted"),
        ("header.X-Auth", "planted"),
        ("note", "Bearer planted"),
        ("note", "basic planted"),
        ("note", "-----BEGIN RSA PRIVATE KEY-----planted"),
        ("note", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.planted"),
        ("note", "AKIAIOSFODNN7PLANTED"),
        ("note", "skiway_planted0123456789abcdef"),
        ("note", "host=db password=planted"),
        ("note", "DefaultEndpointsProtocol=https;AccountKey=planted"),
        ("note", "https://me:planted@host"),
        ("note", '{"type": "service_account", "private_key": "planted"}'),
    ],
)
def test_secret_in_a_property_is_rejected_by_name_and_by_shape(factory, secrets, key, value):
    created = create(factory, secrets, name="before").connector
    for how in (
        {"properties": {key: value}},
        {"auth": v1.ConnectorAuthSpec(properties={key: value})},
        {"auth": v1.ConnectorAuthSpec(header_hints={key: value})},
    ):
        with pytest.raises(InvalidArgument, check=lambda error: error.key.startswith("property.secret")) as raised:
            create(factory, secrets, **how)
        assert "planted" not in str(raised.value).lower()
        path = "properties" if "properties" in how else "auth"
        with pytest.raises(InvalidArgument):
            update(factory, secrets, created, path, **how)


@pytest.mark.parametrize(
    "properties",
    [
        {
            "token_type": "jwt",
            "rest.auth.type": "oauth2",
            "scope": "session:role:reader",
            "keywords": "password policy",
        },
        {
            "warehouse": "s3://bucket/key=value/token",
            "comment": "the key of a lake",
            "s3.endpoint": "https://s3.example.com",
        },
        {
            "oauth2-server-uri": "https://id.example.com/token",
            "header.Accept": "text/html;q=0.9",
            "catalog-name": "basic",
        },
    ],
)
def test_harmless_properties_are_accepted(factory, secrets, properties):
    assert create(factory, secrets, properties=properties).connector.properties == properties


def test_credentials_may_consist_of_properties_only(factory, secrets):
    given = v1.ConnectorCredentials(properties={"password": "planted"})
    created = create(factory, secrets, auth=v1.ConnectorAuthSpec(credentials=given)).connector
    assert "planted" not in str(created)
    assert upstream(created, credentials(factory.home, secrets, created)).credentials == {"password": "planted"}
    with expect_error(InvalidArgument, "field", field="auth.credentials"):
        create(factory, secrets, name="none", auth=v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials()))


@behavior(68)
@pytest.mark.parametrize(
    ("kind", "properties", "allowed"),
    [
        (v1.CK_ICEBERG, {}, False),
        (v1.CK_DELTA, {}, False),
        (v1.CK_UNITY, {}, False),
        (v1.CK_GLUE, {}, False),
        (v1.CK_HIVE, {}, False),
        (v1.CK_ICEBERG, {"iceberg.source": "rest"}, False),
        (v1.CK_ICEBERG, {"iceberg.source": "filesystem"}, True),
        (v1.CK_DELTA, {"delta.source": "filesystem"}, True),
        (v1.CK_PARQUET, {}, True),
    ],
)
def test_only_filesystem_sources_need_no_namespace(factory, secrets, kind, properties, allowed):
    if allowed:
        created = create(factory, secrets, kind=kind, properties=properties).connector
        assert dict(created.properties) == properties  # looking for an option does not add it
    else:
        with expect_error(InvalidArgument, "connector.missing.source.namespace"):
            create(factory, secrets, kind=kind, properties=properties)
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    create(factory, secrets, name="named", kind=kind, source=source)


@behavior(68)
def test_destination_catalog_must_be_given_and_exist_and_match(factory, secrets):
    catalog, other = factory.catalog("lake"), factory.catalog("other")

    def create_with(**destination: Any) -> v1.Connector:
        return create(factory, secrets, destination=v1.ConnectorDestination(**destination)).connector

    with expect_error(InvalidArgument, "connector.missing.destination.catalog"):
        create_with()
    with expect_error(NotFound, "connector.destination.catalog.not.found", display_name="lak"):
        create_with(catalog_display_name="lak")
    with expect_error(InvalidArgument, "connector.destination.catalog.mismatch", display_name="lake"):
        create_with(catalog_display_name="lake", catalog_id=other.resource_id)
    with expect_error(NotFound, "catalog"):
        create_with(catalog_id=v1.ResourceId(id="x"))
    created = create_with(catalog_display_name=" lake ", catalog_id=catalog.resource_id)
    assert created.destination == v1.ConnectorDestination(catalog_id=catalog.resource_id)


@behavior(68)
def test_destination_names_are_resolved_to_ids_if_they_exist(factory, secrets):
    table = factory.table("people", namespace=factory.namespace("sales", "eu"))
    keywords = {
        "catalog_display_name": "lake",
        "namespace": v1.NamespacePath(segments=["sales", "eu"]),
        "table_display_name": "people",
    }
    created = create(factory, secrets, destination=v1.ConnectorDestination(**keywords)).connector.destination
    assert created == v1.ConnectorDestination(
        catalog_id=table.catalog_id, namespace_id=table.namespace_id, table_id=table.resource_id
    )
    path = v1.NamespacePath(segments=["new"])
    absent = v1.ConnectorDestination(catalog_display_name="lake", namespace=path, table_display_name="t")
    unresolved = create(factory, secrets, name="later", destination=absent).connector.destination
    assert (unresolved.namespace, unresolved.table_display_name, unresolved.HasField("namespace_id")) == (
        path,
        "t",
        False,
    )
    for mismatch in (
        {"namespace_id": table.namespace_id, "namespace": path},
        {"table_id": table.resource_id, "table_display_name": "other"},
        {"table_id": table.resource_id, "namespace_id": factory.namespace("other").resource_id},
    ):
        destination = v1.ConnectorDestination(catalog_id=table.catalog_id, **mismatch)
        with expect_error(InvalidArgument, "connector.destination.mismatch"):
            create(factory, secrets, name="wrong", destination=destination)


def test_destination_survives_a_rename(factory, secrets):
    namespace = factory.namespace("sales")
    created = create(
        factory,
        secrets,
        destination=v1.ConnectorDestination(
            catalog_id=namespace.catalog_id, namespace=v1.NamespacePath(segments=["sales"])
        ),
    ).connector
    rename = v1.UpdateNamespaceRequest(
        namespace_id=namespace.resource_id, spec=v1.NamespaceSpec(display_name="new"), update_mask=mask("display_name")
    )
    namespaces.update(factory.home, rename)
    changed = update(
        factory,
        secrets,
        created,
        "destination.table_display_name",
        destination=v1.ConnectorDestination(table_display_name="t"),
    )
    assert changed.destination.namespace_id == namespace.resource_id


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"kind": v1.CK_UNSPECIFIED}, "kind"),
        ({"kind": 99}, "kind"),
        ({"uri": " "}, "uri"),
        ({"source": v1.ConnectorSource(columns=["#x"])}, "source.columns"),
        ({"source": v1.ConnectorSource(table=" ")}, "source.table"),
        ({"source": v1.ConnectorSource(include_tables=[""])}, "source.include_tables or source.exclude_tables"),
        ({"source": v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a", " "]))}, "source.namespace"),
        ({"auth": v1.ConnectorAuthSpec(scheme="kerberos")}, "auth.scheme"),
        ({"auth": v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials())}, "auth.credentials"),
        ({"policy": v1.ConnectorPolicy(interval=Duration(seconds=-1))}, "policy.interval"),
        ({"policy": v1.ConnectorPolicy(max_parallel=-1)}, "policy.max_parallel"),
        ({"policy": v1.ConnectorPolicy(scope=v1.SNS_LATEST_N)}, "policy.latest_n"),
    ],
)
def test_invalid_spec_is_rejected_with_its_field(factory, secrets, more, field):
    with pytest.raises(InvalidArgument) as raised:
        create(factory, secrets, **more)
    assert raised.value.params["field"] == field
    assert "update_mask" not in raised.value.message
    assert stored_secrets(secrets) == []


def test_incomplete_credentials_are_rejected_and_not_echoed(factory, secrets):
    given = v1.ConnectorCredentials(aws=v1.AwsCredentials(access_key_id="AKIA-LONG", secret_access_key=" "))
    with expect_error(InvalidArgument, "field", field="auth.credentials.aws.secret_access_key") as raised:
        create(factory, secrets, auth=v1.ConnectorAuthSpec(credentials=given))
    assert "AKIA" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        (v1.ConnectorSource(), {"orders", "orders_old", "people"}),
        (v1.ConnectorSource(table="people"), {"people"}),
        (v1.ConnectorSource(include_tables=["orders*"]), {"orders", "orders_old"}),
        (v1.ConnectorSource(include_tables=["orders*"], exclude_tables=["*_old"]), {"orders"}),
        (v1.ConnectorSource(exclude_tables=["db.sales.o*"]), {"people"}),
        (v1.ConnectorSource(include_tables=["ORDERS"]), set()),
    ],
)
def test_globs_match_names_and_qualified_names(source, chosen):
    tables = ["orders", "orders_old", "people"]
    assert {name for name in tables if connectors.selects(source, ("db", "sales"), name)} == chosen


def test_single_table_and_globs_are_mutually_exclusive(factory, secrets):
    source = v1.ConnectorSource(table="t", include_tables=["*"])
    with expect_error(InvalidArgument, "selector.ambiguous", first="source.table"):
        create(factory, secrets, source=source)


@behavior(68)
def test_connectors_are_listed_by_kind_in_pages(factory, secrets):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    for number in range(3):
        connector(factory, f"p{number}")
        connector(factory, f"i{number}", kind=v1.CK_ICEBERG, source=source)
    request = v1.ListConnectorsRequest(kind=v1.CK_ICEBERG, page=v1.PageRequest(page_size=2))
    first = connectors.list_(factory.home, request)
    assert (names(first.connectors), first.page.total_size) == (["i0", "i1"], 3)
    request.page.page_token = first.page.next_page_token
    last = connectors.list_(factory.home, request)
    assert (names(last.connectors), last.page.next_page_token) == (["i2"], "")
    assert connectors.list_(factory.home, v1.ListConnectorsRequest()).page.total_size == 6
    with expect_error(InvalidArgument, "page.token.invalid"):
        connectors.list_(
            factory.home,
            v1.ListConnectorsRequest(kind=v1.CK_PARQUET, page=v1.PageRequest(page_token=first.page.next_page_token)),
        )


def test_update_changes_only_the_masked_fields(factory, secrets):
    created = create(factory, secrets, description="old", properties={"a": "1"}, auth=WITH_TOKEN).connector
    changed = update(
        factory,
        secrets,
        created,
        "display_name",
        "description",
        "source.table",
        "policy.enabled",
        "auth.scheme",
        display_name="new",
        source=v1.ConnectorSource(table="t"),
        policy=v1.ConnectorPolicy(enabled=True),
        auth=v1.ConnectorAuthSpec(scheme="OAuth2"),
        uri="ignored",
    )
    assert (changed.display_name, changed.uri, dict(changed.properties)) == ("new", created.uri, {"a": "1"})
    assert not changed.HasField("description")
    assert (changed.source.table, changed.policy.enabled, changed.auth.scheme) == ("t", True, "oauth2")
    assert get(factory, created) == changed
    assert token(factory, secrets, created) == TOKEN


def test_update_without_a_change_writes_nothing(factory, secrets):
    answer = create(factory, secrets, auth=WITH_TOKEN)
    update(factory, secrets, answer.connector, "uri", uri=answer.connector.uri)
    again = connectors.calls(None).get(factory.home, v1.GetConnectorRequest(connector_id=answer.connector.resource_id))
    assert again.meta == answer.meta


@pytest.mark.parametrize(
    ("path", "error_key"),
    [
        ("display_name", "display.name.cannot.clear"),
        ("uri", "uri.cannot.clear"),
        ("kind", "kind.cannot.clear"),
        ("destination", "connector.missing.destination.catalog"),
        ("state", "field.invalid"),
        ("created_at", "update.mask.path.invalid"),
        ("auth.secret_id", "update.mask.path.invalid"),
    ],
)
def test_required_fields_cannot_be_cleared(factory, secrets, path, error_key):
    created = connector(factory)
    with expect_error(InvalidArgument, error_key):
        update(factory, secrets, created, path)
    assert get(factory, created) == created


def test_required_source_namespace_cannot_be_cleared(factory, secrets):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    created = connector(factory, kind=v1.CK_UNITY, source=source)
    for path in ("source", "source.namespace"):
        with expect_error(InvalidArgument, "connector.missing.source.namespace"):
            update(factory, secrets, created, path)


def test_connector_can_be_paused_and_resumed_but_not_marked_as_deleting(factory, secrets):
    created = connector(factory)
    assert update(factory, secrets, created, "state", state=v1.CS_PAUSED).state == v1.CS_PAUSED
    assert update(factory, secrets, created, "state", state=v1.CS_ACTIVE).state == v1.CS_ACTIVE
    with expect_error(InvalidArgument, "field.invalid", field="state", found="CS_DELETING"):
        update(factory, secrets, created, "state", state=v1.CS_DELETING)


def test_new_destination_catalog_name_replaces_the_old_id(factory, secrets):
    created = connector(factory)
    other = factory.catalog("other")
    destination = v1.ConnectorDestination(catalog_display_name="other")
    changed = update(factory, secrets, created, "destination.catalog_display_name", destination=destination)
    assert changed.destination.catalog_id == other.resource_id


@behavior(68)
@pytest.mark.parametrize("path", ["auth", "auth.credentials"])
def test_new_credentials_replace_the_old_ones(factory, secrets, path):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    changed = update(factory, secrets, created, path, auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, created) == "another"
    assert stored_secrets(secrets) == [OTHER.SerializeToString()]
    assert changed.auth.scheme == ("oauth2" if path == "auth.credentials" else "none")
    assert factory.stores.pointers.count("/secrets/") == 1


@behavior(68)
def test_updating_auth_without_credentials_removes_them(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    update(factory, secrets, created, "auth", auth=v1.ConnectorAuthSpec(scheme="none"))
    assert token(factory, secrets, created) is None
    assert stored_secrets(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0


MOVES = [
    {"uri": "https://attacker.example.org/"},
    {"kind": v1.CK_UNITY},
    {"properties": {"s3.endpoint": "https://attacker.example.org/"}},
    {"auth": v1.ConnectorAuthSpec(scheme="none")},
    {"auth": v1.ConnectorAuthSpec(scheme="oauth2", properties={"oauth2-server-uri": "https://attacker.example.org/"})},
    {"auth": v1.ConnectorAuthSpec(scheme="oauth2", header_hints={"Host": "attacker.example.org"})},
]


@pytest.mark.parametrize("change", MOVES, ids=lambda change: ",".join(change))
def test_stored_credentials_are_not_used_with_another_address(factory, secrets, change):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    created = create(factory, secrets, auth=WITH_TOKEN, source=source).connector
    paths = {*change} - {"auth"}
    if "auth" in change:
        paths |= {"auth.scheme", "auth.properties", "auth.header_hints"}
    with expect_error(InvalidArgument, "connector.credentials.again", field="auth.credentials"):
        update(factory, secrets, created, *paths, **change)
    assert get(factory, created) == created
    auth = v1.ConnectorAuthSpec(scheme="oauth2")
    auth.MergeFrom(change.get("auth", v1.ConnectorAuthSpec()))
    auth.credentials.CopyFrom(OTHER)
    moved = update(factory, secrets, created, *paths, "auth.credentials", **{**change, "auth": auth})
    assert token(factory, secrets, moved) == "another"
    assert token(factory, secrets, update(factory, secrets, created, "auth.credentials", "uri", uri="/x")) is None
    assert update(factory, secrets, created, "uri", uri="/y").uri == "/y"  # nothing is stored any more


def test_changes_that_do_not_move_credentials_need_none(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN, properties={"a": "b"}).connector
    auth = v1.ConnectorAuthSpec(scheme="OAuth2")
    same = {"uri": created.uri, "kind": created.kind, "properties": {"a": "b"}, "auth": auth}
    update(factory, secrets, created, "description", "auth.scheme", *({*same} - {"auth"}), description="new", **same)
    assert token(factory, secrets, created) == TOKEN


def test_hidden_values_of_older_records_are_not_used_with_another_address(factory, secrets):
    created = create(factory, secrets, uri="https://host/x").connector
    repository = factory.home.all(CONNECTOR)

    def stored() -> Any:
        return repository.find(keys.connector("a1", created.resource_id.id))

    older = updates.copied(stored().value)
    older.auth.header_hints["X-Auth"] = "planted"
    repository.update(stored(), older)
    with expect_error(InvalidArgument, "connector.property.again", property="X-Auth", changed="uri"):
        update(factory, secrets, created, "uri", uri="https://attacker.example.org/")
    older = updates.copied(stored().value)
    older.auth.header_hints.clear()
    older.uri = "https://host/x?sig=planted"
    repository.update(stored(), older)
    with expect_error(InvalidArgument, "connector.uri.again", changed="properties"):
        update(factory, secrets, created, "properties", properties={"s3.endpoint": "https://attacker.example.org/"})
    assert update(factory, secrets, created, "uri", uri="https://other/").uri == "https://other/"


def test_credentials_for_a_new_address_are_not_used_with_the_record_of_the_old_one(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    before = connectors.find(factory.home, created.resource_id.id).value
    update(factory, secrets, created, "auth", auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=OTHER))
    assert credentials(factory.home, secrets, before) == OTHER
    update(factory, secrets, created, "uri", "auth", uri="/new", auth=WITH_TOKEN)
    with expect_error(Contention, "connector.changed", name="files"):
        credentials(factory.home, secrets, before)


@behavior(68)
def test_failed_update_keeps_the_old_credentials(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    connector(factory, "taken")
    new = v1.ConnectorAuthSpec(credentials=OTHER)
    with expect_error(AlreadyExists, "connector.already.exists"):
        update(factory, secrets, created, "auth", "display_name", auth=new, display_name="taken")
    with expect_error(PreconditionFailed, "version.mismatch"):
        update(factory, secrets, created, "auth", auth=new, precondition=v1.Precondition(expected_version=7))
    with expect_error(InvalidArgument, "field.invalid"):
        update(factory, secrets, created, "auth.credentials", "state", auth=new)
    assert token(factory, secrets, created) == TOKEN
    assert stored_secrets(secrets) == [BEARER.SerializeToString()]
    assert factory.stores.pointers.count("/secrets/") == 1


@behavior(68)
def test_deleting_a_connector_deletes_its_secret(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    delete(factory, secrets, created)
    assert stored_secrets(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0
    delete(factory, secrets, created)
    with expect_error(NotFound, "connector"):
        get(factory, created)
    with expect_error(NotFound, "connector"):
        update(factory, secrets, created, "auth", auth=WITH_TOKEN)
    assert stored_secrets(secrets) == []


def test_connector_with_a_missing_blob_can_be_deleted_with_its_secret(factory, secrets):
    answer = create(factory, secrets, auth=WITH_TOKEN)
    factory.stores.blobs.delete(answer.meta.blob_uri)
    delete(factory, secrets, answer.connector)
    assert stored_secrets(secrets) == []


@behavior(36, 37)
def test_idempotency_key_returns_the_same_connector_unless_credentials_differ(factory, secrets):
    request = v1.CreateConnectorRequest(spec=spec(factory, auth=WITH_TOKEN), idempotency=key("k"))
    first = connectors.create(factory.home, request, secrets=secrets)
    assert connectors.create(factory.home, request, secrets=secrets) == first
    assert len(stored_secrets(secrets)) == 1
    request.spec.auth.credentials.CopyFrom(OTHER)
    with expect_error(Conflict, "idempotency.mismatch"):
        connectors.create(factory.home, request, secrets=secrets)
    own_key = f"{factory.home.caller}\nk"
    record = factory.home.all(IDEMPOTENCY).named(keys.idempotency("a1", "CreateConnector", own_key))
    assert TOKEN.encode() not in record.SerializeToString()


def test_rejected_creation_leaves_no_secret(factory, secrets):
    connector(factory, "taken")
    with expect_error(AlreadyExists, "connector.already.exists"):
        create(factory, secrets, name="taken", auth=WITH_TOKEN)
    assert stored_secrets(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0


def test_no_connector_is_created_if_the_secrets_store_is_unavailable(factory):
    class UnavailableSecrets(MemorySecrets):
        def put(self, *_: Any) -> None:
            raise Unavailable("the vault does not answer: try again later")

    with pytest.raises(Unavailable):
        create(factory, UnavailableSecrets(), auth=WITH_TOKEN)
    assert connectors.list_(factory.home, v1.ListConnectorsRequest()).page.total_size == 0


def test_gc_deletes_old_credentials_that_an_update_could_not_delete(factory, secrets):
    class UndeletableSecrets(MemorySecrets):
        def delete(self, *_: Any) -> None:
            raise Unavailable("the vault does not answer: try again later")

    undeletable = UndeletableSecrets()
    created = create(factory, undeletable, auth=WITH_TOKEN).connector
    update(factory, undeletable, created, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, undeletable, created) == "another"
    secrets._secrets = undeletable._secrets
    factory.clock.advance(901)
    assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
    assert stored_secrets(secrets) == [OTHER.SerializeToString()]


def test_missing_credentials_raise_an_error_with_advice(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    secrets._secrets.clear()
    with expect_error(PreconditionFailed, "connector.credentials.lost", name="files"):
        token(factory, secrets, created)


def test_account_with_connectors_cannot_be_deleted_and_connectors_are_private_to_it(factory, secrets):
    created = connector(factory)
    factory.account("a2")
    other_realm = factory.realm("a2")
    with expect_error(NotFound, "connector"):
        connectors.calls(secrets).get(other_realm, v1.GetConnectorRequest(connector_id=created.resource_id))
    assert connectors.list_(other_realm, v1.ListConnectorsRequest()).page.total_size == 0
    with expect_error(Conflict, "account.not_empty"):
        accounts.delete(factory.platform, v1.DeleteAccountRequest(account_id=v1.ResourceId(id="a1")))


@behavior(70)
def test_statistics_are_a_separate_pass():
    assert connectors.capture_mode(v1.SyncCaptureRequest()) == v1.CAP_METADATA_ONLY_CORE
    assert connectors.capture_mode(v1.SyncCaptureRequest(include_statistics=True)) == v1.CAP_STATS_ONLY_ASYNC


class CrashingSecrets(MemorySecrets):
    """A secrets store whose process crashes at a chosen moment."""

    def __init__(self, inner: MemorySecrets, crash_point: CrashPoint) -> None:
        self._inner, self._crash_point = inner, crash_point

    def put(self, *arguments: Any) -> None:
        self._crash_point.run(self._inner.put, *arguments)

    def delete(self, *arguments: Any) -> None:
        self._crash_point.run(self._inner.delete, *arguments)


@behavior(10, 68)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", ["create", "update", "delete"])
def test_crash_at_any_step_leaves_working_connectors_and_gc_deletes_other_secrets(change, when):
    at = 0
    while True:
        at += 1
        clock, secrets = Clock(), MemorySecrets()
        factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        new_spec = spec(factory, auth=WITH_TOKEN)
        created = None if change == "create" else create(factory, secrets, auth=WITH_TOKEN).connector
        crash_point = CrashPoint(at, when)
        realm = Realm(crashing_stores(factory.stores, crash_point), "a1", clock=clock, ids=factory.ids)
        crashing_secrets = CrashingSecrets(secrets, crash_point)
        try:
            if created is None:
                connectors.create(realm, v1.CreateConnectorRequest(spec=new_spec), secrets=crashing_secrets)
            elif change == "update":
                request = v1.UpdateConnectorRequest(
                    connector_id=created.resource_id,
                    spec=v1.ConnectorSpec(uri="file:///new", auth=v1.ConnectorAuthSpec(credentials=OTHER)),
                    update_mask=mask("auth", "uri"),
                )
                connectors.calls(crashing_secrets).update(realm, request)
            else:
                request = v1.DeleteConnectorRequest(connector_id=created.resource_id)
                connectors.calls(crashing_secrets).delete(realm, request)
        except Crashed:
            pass
        assert damage(factory.stores) == []
        found = connectors.list_(factory.home, v1.ListConnectorsRequest()).connectors
        for each in found:
            expected = {"file:///data": TOKEN, "file:///new": "another"}
            assert token(factory, secrets, each) == expected[each.uri]
        clock.advance(901)
        gc.sweep_secrets(factory.stores, secrets, clock=clock)
        assert len(stored_secrets(secrets)) == len(found)
        assert factory.stores.pointers.count("/secrets/") == len(found)
        for each in found:
            assert token(factory, secrets, each) is not None
        if crash_point.done < at:
            break
    assert at > 5


def test_gc_keeps_recent_and_used_credentials_and_supports_dry_runs(factory, secrets):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    pointer = factory.stores.pointers.get(keys.connector("a1", created.resource_id.id))
    factory.home.all(CONNECTOR).delete(pointer, get(factory, created))
    assert gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed == ()
    factory.clock.advance(900)
    assert gc.sweep_secrets(factory.stores, secrets, clock=factory.clock, dry_run=True).removed == ()
    factory.clock.advance(1)
    assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock, dry_run=True).removed) == 1
    in_use = create(factory, secrets, name="kept", auth=WITH_TOKEN).connector
    factory.clock.advance(901)
    dry_run = gc.sweep_secrets(factory.stores, secrets, clock=factory.clock, dry_run=True)
    assert (len(dry_run.removed), len(stored_secrets(secrets))) == (1, 2)
    assert gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed == dry_run.removed
    assert token(factory, secrets, in_use) == TOKEN
    assert len(stored_secrets(secrets)) == 1


def test_update_overtaken_by_gc_fails_and_keeps_the_old_credentials(factory, secrets, monkeypatch):
    """Gc runs after the secret is stored and before the record refers to it."""
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    original = Repository.update

    def delayed_call(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(Repository, "update", original)
        factory.clock.advance(901)
        assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
        return original(*arguments, **keywords)

    monkeypatch.setattr(Repository, "update", delayed_call)
    with expect_error(Contention, "store.contended"):
        update(factory, secrets, created, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, created) == TOKEN


def test_creation_overtaken_by_gc_is_retried(factory, secrets, monkeypatch):
    factory.first_catalog()
    original = Repository.create

    def delayed_call(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(Repository, "create", original)
        factory.clock.advance(901)
        assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
        return original(*arguments, **keywords)

    monkeypatch.setattr(Repository, "create", delayed_call)
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    assert token(factory, secrets, created) == TOKEN
    assert len(stored_secrets(secrets)) == 1


def test_record_cannot_refer_to_a_secret_that_gc_is_deleting(factory, secrets, monkeypatch):
    created = create(factory, secrets, auth=WITH_TOKEN).connector
    original = Repository.update
    outcomes: list[Any] = []

    class RacingSecrets(MemorySecrets):
        """Lets the writer continue after gc has decided to delete the secret, right before it does."""

        _secrets = secrets._secrets
        _lock = secrets._lock
        write: Any

        def __init__(self) -> None: ...

        def delete(self, *arguments: Any) -> None:
            with expect_error(Contention, "store.contended") as raised:
                self.write()
            outcomes.append(raised.value)
            super().delete(*arguments)

    def delayed_call(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(Repository, "update", original)
        factory.clock.advance(901)
        racing = RacingSecrets()
        racing.write = lambda: original(*arguments, **keywords)
        gc.sweep_secrets(factory.stores, racing, clock=factory.clock)
        raise outcomes[0]

    monkeypatch.setattr(Repository, "update", delayed_call)
    with expect_error(Contention, "store.contended"):
        update(factory, secrets, created, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, created) == TOKEN


@pytest.mark.parametrize(
    ("uri", "properties"),
    [
        ("/etc", {}),
        ("file:///srv/other", {}),
        ("sqlite:////srv/other/catalog.db", {}),
        ("http://127.0.0.1:8181", {}),
        ("https://localhost", {}),
        ("/srv/data", {"warehouse": "/srv/other"}),
        ("/srv/data", {"allowed-locations": "/srv/data, /etc"}),
        ("s3://bucket/x", {"s3.endpoint": "http://169.254.169.254"}),
    ],
)
def test_source_that_may_not_be_opened_is_rejected_when_it_is_defined(
    factory: ResourceFactory, secrets: MemorySecrets, uri: str, properties: dict[str, str]
) -> None:
    request = v1.CreateConnectorRequest(spec=spec(factory, uri=uri, properties=properties))
    with pytest.raises(PermissionDenied):
        connectors.create(factory.home, request, secrets=secrets, access=CLOSED)
    allowed = v1.CreateConnectorRequest(spec=spec(factory, uri="/srv/data"))
    made = connectors.create(factory.home, allowed, secrets=secrets, access=CLOSED).connector
    changed = v1.UpdateConnectorRequest(
        connector_id=made.resource_id,
        spec=v1.ConnectorSpec(uri=uri, properties=properties),
        update_mask=mask("uri", "properties"),
    )
    with pytest.raises(PermissionDenied):
        connectors.calls(secrets, CLOSED).update(factory.home, changed)
