"""The objects that a setup file declares. The reader, the JSON schema and the export follow from these classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from skiway.foundation.resources import PLAIN, WEBHOOK, Resource


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mapping in the file. A key that is left out has its default."""


Properties: TypeAlias = dict[str, str]
Texts: TypeAlias = tuple[str, ...]
Description: TypeAlias = Annotated[str, Meta(description="Text for people.")]
FullName: TypeAlias = Annotated[
    str, Meta(description='Names joined by dots, such as lake.sales. Write names with dots in quotes: lake."eu.west".')
]
Caller: TypeAlias = Annotated[str, Meta(description="everyone, user:<subject>, group:<name> or role:<name>")]


Amount: TypeAlias = Annotated[int, Meta(description="A whole number; 0 is no quota of the account.", ge=0)]


class Quota(Declaration, frozen=True):
    """Quotas below those of the server."""

    calls: Amount = 0
    scans: Amount = 0
    exchanges: Amount = 0
    handshakes: Amount = 0
    queries: Amount = 0
    per_second: Annotated[float, Meta(description="Calls per second; 0 is no quota of the account.", ge=0)] = 0.0
    bytes_per_second: Amount = 0


class Quotas(Declaration, frozen=True):
    """The quotas that the account sets for each of its callers, and for all of them together."""

    caller: Quota = Quota()
    account: Quota = Quota()


class Account(Declaration, frozen=True):
    """The account itself."""

    description: Description = ""
    tags: Annotated[Properties, Meta(description="Labels of the account.")] = {}
    quotas: Quotas = Quotas()


class Catalog(Declaration, frozen=True):
    """A catalog, which contains namespaces."""

    name: str
    description: Description = ""
    connector_ref: Annotated[str, Meta(description="Mark of a catalog that only connectors fill.")] = ""
    policy_ref: str = ""
    properties: Properties = {}
    protected: Annotated[bool, Meta(description="Whether only merges of branches change what it contains.")] = False
    mergers: Annotated[tuple[str, ...], Meta(description="Who may merge: user:, role: or group: and a name.")] = ()
    required_rules: Annotated[
        tuple[str, ...], Meta(description="Quality rules that must pass before a merge; * stands for all.")
    ] = ()


class Namespace(Declaration, frozen=True):
    """A namespace, which contains tables, views and further namespaces."""

    name: FullName
    description: Description = ""
    policy_ref: str = ""
    properties: Properties = {}


class Column(Declaration, frozen=True):
    """A column of a table, or a field of a struct."""

    name: str
    type: ColumnType
    required: bool = False
    doc: str = ""


class StructType(Declaration, frozen=True, tag_field="type", tag="struct"):
    """A type with named fields."""

    fields: tuple[Column, ...]


class ListType(Declaration, frozen=True, tag_field="type", tag="list"):
    """A type of lists."""

    element: ColumnType
    element_required: bool = False


class MapType(Declaration, frozen=True, tag_field="type", tag="map"):
    """A type of maps."""

    key: ColumnType
    value: ColumnType
    value_required: bool = False


ColumnType: TypeAlias = Annotated[
    str | StructType | ListType | MapType,
    Meta(description="A type of Iceberg, such as long, string, decimal(10, 2) or timestamptz, or a nested type."),
]


class Table(Declaration, frozen=True):
    """A managed table. It is created if it is missing, and never altered or deleted."""

    name: FullName
    columns: tuple[Column, ...]
    description: Description = ""
    properties: Properties = {}


class SecretRef(Declaration, frozen=True):
    """A reference to a secret: an environment variable or a file of the machine that applies the setup."""

    env: Annotated[str, Meta(description="Name of an environment variable.")] = ""
    file: Annotated[str, Meta(description="Path of a file.")] = ""


class Credentials(Declaration, frozen=True):
    """Credentials of a connector: one reference to all of them, or a type and its fields."""

    env: Annotated[str, Meta(description="Environment variable with text such as type=bearer,token=…")] = ""
    file: Annotated[str, Meta(description="File with text such as type=bearer,token=…")] = ""
    type: Literal["bearer", "client", "aws", "cli", "password"] | None = None
    password: SecretRef | None = None
    token: SecretRef | None = None
    endpoint: str = ""
    client_id: str = ""
    client_secret: SecretRef | None = None
    access_key_id: SecretRef | None = None
    secret_access_key: SecretRef | None = None
    session_token: SecretRef | None = None
    provider: str = ""


class Auth(Declaration, frozen=True):
    """How a connector authenticates to its source."""

    scheme: Literal["none", "oauth2", "aws-sigv4"] = "none"
    properties: Properties = {}
    header_hints: Properties = {}
    credentials: Credentials | None = None


class Source(Declaration, frozen=True):
    """The tables of a source that a connector mirrors, and the columns of which it computes statistics."""

    namespace: Annotated[str, Meta(description="Namespace of the source, as dotted text.")] = ""
    table: str = ""
    include_tables: Annotated[Texts, Meta(description="Globs; without any, all tables.")] = ()
    exclude_tables: Texts = ()
    columns: Texts = ()
    exclude_columns: Texts = ()


class TableDestination(Declaration, frozen=True):
    """The destination of one table."""

    source: Annotated[str, Meta(description="Name of the table in the source.")]
    namespace: Annotated[str, Meta(description="Namespace in the catalog, as dotted text.")] = ""
    name: str = ""


class Destination(Declaration, frozen=True):
    """Where the mirrored tables are."""

    catalog: str
    namespace: Annotated[str, Meta(description="Namespace in the catalog, as dotted text.")] = ""
    table: str = ""
    tables: tuple[TableDestination, ...] = ()


class Schedule(Declaration, frozen=True):
    """When a connector syncs by itself, and how."""

    enabled: bool = False
    every: Annotated[str, Meta(description="Interval such as 30s, 10m, 1h or 1d.")] = ""
    not_before: Annotated[str, Meta(description="Time such as 2026-01-31T08:00:00Z.")] = ""
    max_parallel: Annotated[int, Meta(description="Number of tables to sync at the same time.", ge=0)] = 0
    mode: Literal["incremental", "full"] | None = None
    snapshots: Literal["current", "latest", "all"] | None = None
    latest: Annotated[int, Meta(description="Number of snapshots for snapshots: latest.", ge=0)] = 0


class TableCopy(Declaration, frozen=True):
    """How the rows of a table are copied; what is not set is as for all tables."""

    mode: Literal["append", "upsert", "replace"] | None = None
    key_columns: Annotated[Texts, Meta(description="The columns that identify a row, for upsert.")] = ()
    cursor_column: Annotated[str, Meta(description="Column of a database that grows with every change.")] = ""
    schema_changes: Literal["follow", "reject"] | None = None
    partition_by: Annotated[Texts, Meta(description="Partitions of new tables, such as day(ts).")] = ()
    sort_by: Annotated[str, Meta(description="Order of new tables, such as ts DESC, id.")] = ""
    read_partitions: Annotated[int, Meta(description="Connections that read a table of a database.", ge=0)] = 0
    expect: Annotated[tuple[dict[str, Any], ...], Meta(description="Expectations, as in the files of pipelines.")] = ()


class Copy(TableCopy, frozen=True):
    """How rows are copied into managed tables, and what differs for single tables, by their names in the source."""

    changes: Annotated[bool, Meta(description="Copy the changes in the log of PostgreSQL, also deletions.")] = False
    tables: dict[str, TableCopy] = {}


class Connector(Declaration, frozen=True):
    """A connector, which mirrors the tables of a source into a catalog, or copies their rows."""

    name: str
    kind: Literal["iceberg", "delta", "glue", "hive", "unity", "parquet", "csv", "json", "jdbc", "airport"]
    uri: Annotated[str, Meta(description="Folder, URL, or address of a REST catalog, as the server reaches it.")]
    destination: Destination
    description: Description = ""
    properties: Properties = {}
    source: Source = Source()
    auth: Auth = Auth()
    schedule: Schedule = Schedule()
    copy: Copy | None = None
    paused: bool = False


class ViewColumn(Declaration, frozen=True):
    """A column of a view."""

    name: str
    type: Annotated[str, Meta(description="A type of DuckDB, such as BIGINT.")]
    nullable: bool = True


class View(Declaration, frozen=True):
    """A view. Without `reads`, `columns` or `search_path`, those of an existing view stay as they are."""

    name: FullName
    sql: Annotated[Properties, Meta(description="SQL by dialect, such as duckdb.")]
    description: Description = ""
    rights: Literal["invoker", "definer"] = "invoker"
    reads: Annotated[Texts | None, Meta(description="Full names of the tables and views that it reads.")] = None
    columns: tuple[ViewColumn, ...] | None = None
    search_path: Texts | None = None
    properties: Properties = {}


class Object(Declaration, frozen=True):
    """A reference to one object: exactly one key, with its full name."""

    catalog: str = ""
    namespace: str = ""
    table: str = ""
    view: str = ""


class Tags(Declaration, frozen=True):
    """The tags of a table's columns."""

    table: FullName
    columns: Annotated[dict[str, Texts], Meta(description="Tags by the names of columns.")]


class Mask(Declaration, frozen=True):
    """What callers see instead of the values of columns: a built-in mask, or SQL."""

    kind: Literal["null", "hash", "partial"] | None = None
    sql: str = ""
    columns: Annotated[Texts, Meta(description="Names of columns, in which * stands for any characters.")] = ()


class Policy(Declaration, frozen=True):
    """A policy, with a row filter or a mask."""

    name: str
    to: tuple[Caller, ...]
    exceptions: tuple[Caller, ...] = ()
    on: Annotated[tuple[Object, ...], Meta(description="Without any, the whole account.")] = ()
    tags: Texts = ()
    row_filter: Annotated[str, Meta(description="SQL over the columns of a row.")] = ""
    mask: Mask | None = None
    description: Description = ""


Share: TypeAlias = Annotated[float, Meta(description="A share, such as 0.05 for 5%.", ge=0)]
Count: TypeAlias = Annotated[int, Meta(description="A whole number.", ge=0)]
Limit: TypeAlias = Annotated[str, Meta(description='A value of the column in quotes, such as "10" or "2026-01-31".')]


class RowCount(Declaration, frozen=True):
    """The number of rows, and its change since the previous snapshot as a share."""

    min: Count | None = None
    max: Count | None = None
    max_decrease: Share | None = None
    max_increase: Share | None = None


class NullShare(Declaration, frozen=True):
    """The share of NULL in a column."""

    column: str
    max: Share = 0.0


class DistinctCount(Declaration, frozen=True):
    """The number of distinct values of a column."""

    column: str
    min: Count | None = None
    max: Count | None = None


class Range(Declaration, frozen=True):
    """The smallest and the largest value of a column."""

    column: str
    min: Limit | None = None
    max: Limit | None = None


class Quantile(Declaration, frozen=True):
    """The value that a share of the values of a column does not exceed."""

    column: str
    quantile: Share
    min: Limit | None = None
    max: Limit | None = None


class Freshness(Declaration, frozen=True):
    """The age of the current snapshot."""

    max_age: Annotated[str, Meta(description="Duration such as 30m, 1h or 1d.")]


class AllowedValues(Declaration, frozen=True):
    """The only values that a column may have, besides NULL."""

    column: str
    values: tuple[Limit, ...]


class Unique(Declaration, frozen=True):
    """Columns whose values together identify a row, without NULL."""

    columns: Texts


class Schema(Declaration, frozen=True):
    """The columns of the table. Without any, a new rule gets those that the table has, and an existing one keeps its own."""

    columns: Annotated[Properties, Meta(description="Types of Iceberg by name.")] = {}
    allow_added: bool = False


class Rule(Declaration, frozen=True):
    """A quality rule about a table, with a check of one kind."""

    name: str
    table: FullName
    severity: Literal["error", "warning"] = "error"
    description: Description = ""
    estimates_only: Annotated[bool, Meta(description="Never read rows, even if statistics do not decide.")] = False
    row_count: RowCount | None = None
    null_share: NullShare | None = None
    distinct_count: DistinctCount | None = None
    range: Range | None = None
    quantile: Quantile | None = None
    freshness: Freshness | None = None
    allowed_values: AllowedValues | None = None
    unique: Unique | None = None
    schema: Schema | None = None


CHECKS: Final[Mapping[str, type[Declaration]]] = {
    "row_count": RowCount,
    "null_share": NullShare,
    "distinct_count": DistinctCount,
    "range": Range,
    "quantile": Quantile,
    "freshness": Freshness,
    "allowed_values": AllowedValues,
    "unique": Unique,
    "schema": Schema,
}
"""The kinds of rules, of which a rule has one."""


class Pipeline(Declaration, frozen=True):
    """A pipeline, which derives tables. A user who applies a change of it becomes its owner."""

    name: Annotated[str, Meta(description="The name in pipeline.yml.")]
    files: Annotated[
        Properties, Meta(description="Texts by path: pipeline.yml, and .sql and .py files that make tables.")
    ]


class Grant(Declaration, frozen=True):
    """A privilege of a user or role on an object and everything in it."""

    to: Annotated[str, Meta(description="user:<subject> or role:<name>")]
    privilege: Literal["read", "write", "manage"]
    on: Object


class Described(Declaration, frozen=True):
    """A resource that a setup file declares."""

    name: str


def declared(resource: Resource) -> type[Described]:
    """The class of the declarations of one kind."""
    keys: list[Any] = []
    for field in resource.fields:
        kind: Any = SecretRef | None if field.is_secret else tuple[field.type, ...] if field.many else field.type  # type: ignore[name-defined]
        annotated: Any = Annotated[kind, Meta(description=field.help)]
        is_needed = field.required and not field.is_secret  # the server may have the secret
        default = None if field.is_secret else () if field.many else field.type()
        keys.append((field.name, annotated) if is_needed else (field.name, annotated, default))
    keys.sort(key=len)
    about = f"A {resource.name}. {resource.about}"
    namespace = {"__doc__": about}
    made: Any = msgspec.defstruct(
        resource.title,
        keys,
        bases=(Described,),
        namespace=namespace,
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )
    declaration: type[Described] = made
    return declaration


if TYPE_CHECKING:
    Webhook = Described
else:
    Webhook = declared(WEBHOOK)

DESCRIBED: Final[Mapping[str, tuple[Resource, type[Described]]]] = {
    WEBHOOK.plural: (WEBHOOK, Webhook),
    **{resource.plural: (resource, declared(resource)) for resource in PLAIN},
}
"""The kinds, and the classes of their declarations, by section."""


class Setup(Declaration, frozen=True):
    """The configuration of an account. Sections that are left out are not compared and not changed."""

    version: Literal[1]
    account: Account | None = None
    catalogs: tuple[Catalog, ...] | None = None
    namespaces: tuple[Namespace, ...] | None = None
    tables: tuple[Table, ...] | None = None
    connectors: tuple[Connector, ...] | None = None
    views: tuple[View, ...] | None = None
    tags: tuple[Tags, ...] | None = None
    policies: tuple[Policy, ...] | None = None
    rules: tuple[Rule, ...] | None = None
    pipelines: tuple[Pipeline, ...] | None = None
    webhooks: tuple[Webhook, ...] | None = None
    grants: tuple[Grant, ...] | None = None


if PLAIN and not TYPE_CHECKING:
    Setup = msgspec.defstruct(
        "Setup",
        [(resource.plural, tuple[DESCRIBED[resource.plural][1], ...] | None, None) for resource in PLAIN],
        bases=(Setup,),
        namespace={"__doc__": Setup.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )

SECTION_OF: Final = {
    _declaration.__name__.lower(): _field.name
    for _field in msgspec.structs.fields(Setup)
    for _declaration in (get_args(get_args(_field.type)[0])[:1] if _field.name not in ("version", "account") else ())
}
"""The sections that are lists, by the kinds of what they declare, such as `policy`."""
SECTIONS: Final = tuple(SECTION_OF.values())
