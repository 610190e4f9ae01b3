"""`skiway connectors`: commands, and the options for schedules, sources and credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.lake import jobs
from skiway.cli.lake.catalogs import Description
from skiway.cli.options import key_values
from skiway.config.fields import DURATION

if TYPE_CHECKING:
    from skiway.client.metastore import Connector
    from skiway.model import v1

app = group(
    "connectors",
    "Manage connectors, which mirror tables of other catalogs and folders into a catalog, or copy their rows.",
)

URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
NEVER: Final = "never"


class Kind(StrEnum):
    """The format of a source."""

    parquet = "parquet"
    iceberg = "iceberg"
    glue = "glue"
    hive = "hive"
    unity = "unity"
    airport = "airport"
    delta = "delta"
    csv = "csv"
    json = "json"
    jdbc = "jdbc"


class CopyMode(StrEnum):
    """How copied rows get into a table."""

    append = "append"
    upsert = "upsert"
    replace = "replace"  # type: ignore[assignment]


class SchemaChanges(StrEnum):
    """What a copy does when the columns of its source change."""

    follow = "follow"
    reject = "reject"


class Mode(StrEnum):
    """The passes of a sync."""

    both = "both"
    metadata = "metadata"
    stats = "stats"


Name = Annotated[str, typer.Argument(metavar="CONNECTOR", help="Name of the connector.")]
Uri = Annotated[
    str,
    typer.Option("--uri", metavar="URI", help="Folder, s3:// URL, or address of a catalog or of a database."),
]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="GLOB", help="Only tables that match; repeatable.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="GLOB", help="No tables that match; repeatable.")
]
SourceNamespace = Annotated[
    str | None,
    typer.Option("--source-namespace", metavar="NAME", help="Only this namespace of the source; folders have none."),
]
SourceTable = Annotated[
    str | None, typer.Option("--source-table", metavar="NAME", help="Only this table of the source.")
]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="Option of the source; repeatable.")
]
Credential = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="Credentials, such as type=bearer,token=@FILE. Types: bearer, client, aws, cli, password. A value can be @FILE or "
        "$VARIABLE.",
        envvar="SKIWAY_CREDENTIAL",
        show_envvar=True,
    ),
]
Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="Interval of automatic syncs, such as 10m, 1h or 1d; or never."),
]
Copied = Annotated[
    CopyMode | None, typer.Option("--copy", help="Copy rows into managed tables, instead of mirroring tables.")
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN", help="Column that identifies a row, for upsert; repeatable."),
]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="COLUMN", help="Column of a database that grows with every new or changed row."),
]
Changes = Annotated[
    SchemaChanges | None, typer.Option("--schema-changes", help="Follow or reject changes of the columns of a copy.")
]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option("--partition-by", metavar="PART", help="Partition of new copies, such as day(ts); repeatable."),
]
SortBy = Annotated[
    str | None,
    typer.Option("--sort-by", metavar="LIST", help="Order of the rows of new copies, such as 'ts DESC, id'."),
]
ReadPartitions = Annotated[
    int | None,
    typer.Option("--read-partitions", metavar="N", min=1, help="Connections that read a table of a database at once."),
]


@dataclass(frozen=True, slots=True)
class ConnectorRecord:
    """A connector in the output. It shows whether there are credentials, but never the credentials themselves."""

    name: str
    id: str
    kind: str
    uri: str
    state: str
    catalog: str
    namespace: str | None
    table: str | None
    source_namespace: str | None
    source_table: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    credentials: bool
    every: timedelta | None
    description: str | None
    properties: dict[str, str]
    created_at: datetime | None
    updated_at: datetime | None
    damage: str | None = None
    copy: str | None = None
    key_columns: tuple[str, ...] = ()
    cursor_column: str | None = None
    missed: tuple[str, ...] = ()
    last_sync: str | None = None
    last_errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, connector: Connector, call: Call) -> ConnectorRecord:
        """Convert a resource of the client."""
        message = connector.message
        if connector.damage:
            return cls._damaged(connector)
        return cls(
            connector.name,
            str(connector.id),
            connector.kind,
            connector.uri,
            "paused" if connector.is_paused else "active",
            _catalog_name(call, message.destination),
            _namespace_name(call, message.destination),
            message.destination.table_display_name or None,
            ".".join(message.source.namespace.segments) or None,
            message.source.table or None,
            tuple(message.source.include_tables),
            tuple(message.source.exclude_tables),
            bool(message.auth.secret_id),
            _interval(message.policy),
            connector.description,
            dict(message.properties),
            connector.created_at,
            connector.updated_at,
            copy=_mode(message.copy) or None,
            key_columns=tuple(message.copy.key_columns),
            cursor_column=message.copy.cursor_column or None,
            missed=tuple(_missed(connector)),
        )

    @classmethod
    def _damaged(cls, connector: Connector) -> ConnectorRecord:
        place = (connector.name, str(connector.id), "-", "-", "damaged", "-")
        return cls(*place, None, None, None, None, (), (), False, None, None, {}, None, None, connector.damage)


@command(app, "list")
def list_(call: Call, kind: Annotated[Kind | None, typer.Option(help="Only connectors of this kind.")] = None) -> None:
    """List the connectors of the account."""
    found = [ConnectorRecord.of(each, call) for each in call.lake.connectors(kind=kind and kind.value)]
    columns = ["name", "kind", "state", "catalog", "namespace", "uri"]
    call.print_rows(found, columns, empty="there are no connectors; create one with: skiway connectors create")


@command(app, "get")
def get(call: Call, name: Name) -> None:
    """Show a connector, and how its last sync ended."""
    connector = call.lake.connectors.get(name)
    record = ConnectorRecord.of(connector, call)
    if last := next((job for job in call.lake.jobs(connector=connector.id) if job.is_over), None):
        record = replace(record, last_sync=last.state, last_errors=last.errors)
    call.print_record(record)


@command(app, "create")
def create(
    call: Call,
    name: Name,
    kind: Annotated[Kind, typer.Option(help="Format of the source.")],
    uri: Uri,
    catalog: Annotated[str, typer.Option(metavar="CATALOG", help="Destination catalog.")] = "lake",
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Destination namespace.",
            show_default="as in the source; for a folder, the connector's name",
        ),
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Destination name of --source-table.")] = None,
    source_namespace: SourceNamespace = None,
    source_table: SourceTable = None,
    include: Include = None,
    exclude: Exclude = None,
    properties: Properties = None,
    credential: Credential = None,
    every: Every = None,
    copy: Copied = None,
    keys: Keys = None,
    cursor: Cursor = None,
    schema_changes: Changes = None,
    partition_by: PartitionBy = None,
    sort_by: SortBy = None,
    read_partitions: ReadPartitions = None,
    description: Description = None,
) -> None:
    """Create a connector.

    It mirrors tables, or copies their rows with --copy. The source is not read before the connector is validated or synced.
    The server reads folders, so a path must exist on the server; a relative path is resolved here.
    """
    address = _absolute(uri)
    created = call.lake.connectors.create(
        name,
        kind=kind.value,
        uri=address,
        catalog=catalog,
        namespace=namespace,
        table=table or "",
        source=_source(source_namespace, source_table, include, exclude),
        properties={**_default_properties(kind, address, source_namespace), **key_values(properties, "--property")},
        auth=_auth(credential) if credential else None,
        policy=_policy(every) if every else None,
        copy=_copy(None, copy, keys, cursor, schema_changes, partition_by, sort_by, read_partitions),
        description=description,
    )
    call.print_result(
        "\n".join(
            [*_missed(created), f"created connector {name}; sync it with: skiway connectors sync {name} --watch"]
        ),
        ConnectorRecord.of(created, call),
    )


@command(app, "update")
def update(
    call: Call,
    name: Name,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="New name.")] = None,
    uri: Annotated[str | None, typer.Option("--uri", metavar="URI", help="New address of the source.")] = None,
    source_namespace: SourceNamespace = None,
    source_table: SourceTable = None,
    include: Include = None,
    exclude: Exclude = None,
    properties: Properties = None,
    credential: Credential = None,
    every: Every = None,
    copy: Copied = None,
    keys: Keys = None,
    cursor: Cursor = None,
    schema_changes: Changes = None,
    partition_by: PartitionBy = None,
    sort_by: SortBy = None,
    read_partitions: ReadPartitions = None,
    description: Description = None,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Stop or resume syncing.", show_default=False),
    ] = None,
) -> None:
    """Change a connector.

    Options that are not given stay as they are. Lists and properties are replaced as a whole.
    """
    source = _source(source_namespace, source_table, include, exclude)
    options = (copy, keys, cursor, schema_changes, partition_by, sort_by, read_partitions)
    before = call.lake.connectors.get(name).message.copy if any(each is not None for each in options) else None
    changes: dict[str, Any] = {
        "name": new_name,
        "uri": uri and _absolute(uri),
        "source": source,
        "properties": key_values(properties, "--property") or None,
        "auth": _auth(credential) if credential else None,
        "policy": _policy(every, call.lake.connectors.get(name).message.policy) if every else None,
        "copy": _copy(before, *options),
        "description": description,
        "paused": pause,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("there is nothing to change: give at least one option")
    updated = call.lake.connectors.update(name, **given)
    missed = _missed(updated) if "copy" in given else ()
    call.print_result("\n".join([*missed, f"updated connector {updated.name}"]), ConnectorRecord.of(updated, call))


@command(app, "delete")
def delete(call: Call, name: Name) -> None:
    """Delete a connector and its credentials.

    The tables that it mirrored are not deleted.
    """
    deleted = ConnectorRecord.of(call.lake.connectors.get(name), call)
    call.lake.connectors.delete(name)
    call.print_result(f"deleted connector {name}; its mirrored tables are not deleted", deleted)


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a validation in the output."""

    connector: str
    ok: bool
    summary: str
    capabilities: dict[str, str]


@command(app, "validate")
def validate(call: Call, name: Name) -> None:
    """Check whether the source responds, with the stored credentials.

    The exit code is 1 if it does not.
    """
    result = call.lake.connectors.validate(name)
    call.print_result(
        result.summary, Validation(name, result.ok, result.summary, dict(sorted(result.capabilities.items())))
    )
    if not result.ok:
        raise typer.Exit(1)


@command(app, "sync")
def sync(
    call: Call,
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it ends.")] = False,
    mode: Annotated[
        Mode, typer.Option(help="Run a job with both passes, or run one pass and wait for it.")
    ] = Mode.both,
    full: Annotated[bool, typer.Option("--full", help="Include known snapshots, and profile files again.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this destination namespace; repeatable.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Only this destination table.")] = None,
) -> None:
    """Mirror the tables of a connector, or copy what is new in them.

    A sync records new snapshots and files, then computes statistics with Spark. A copy loads new rows; with --full, it loads
    all of them again. With --watch, the exit code is 1 unless
    all of it succeeded. Ctrl-C does not stop the job.
    """
    selection = jobs.Selection(namespace or [], table or "")
    if mode is Mode.both:
        jobs.sync(call, name, selection, full=full, watch=watch)
        return
    if full:
        raise typer.BadParameter("--full is only for jobs: leave out --mode", param_hint="--full")
    jobs.capture(call, name, mode.value, selection)


# -- options to messages -----------------------------------------------------------------------------------------------


def _absolute(uri: str) -> str:
    """Return a URL unchanged, and a path as an absolute path."""
    return uri if URL.match(uri) else str(Path(uri).expanduser().resolve())


def _source(
    namespace: str | None, table: str | None, include: list[str] | None, exclude: list[str] | None
) -> v1.ConnectorSource | None:
    """Return the selection of tables of a source; None if there is none."""
    if not (namespace or table or include or exclude):
        return None
    from skiway.client.metastore.calls import segments
    from skiway.model import v1

    path = v1.NamespacePath(segments=segments(namespace, resource="namespace")) if namespace else None
    return v1.ConnectorSource(namespace=path, table=table, include_tables=include or [], exclude_tables=exclude or [])


def _default_properties(kind: Kind, uri: str, namespace: str | None) -> dict[str, str]:
    """Return the properties for reading a whole folder of Iceberg or Delta tables, unless a namespace is given."""
    is_folder = not URL.match(uri) or uri.startswith(("file:", "s3:"))
    has_source = kind in (Kind.iceberg, Kind.delta)
    return {f"{kind.value}.source": "filesystem"} if has_source and is_folder and not namespace else {}


def _copy(
    before: v1.CopySettings | None,
    mode: CopyMode | None,
    keys: list[str] | None,
    cursor: str | None,
    schema_changes: SchemaChanges | None,
    partition_by: list[str] | None,
    sort_by: str | None,
    read_partitions: int | None,
) -> v1.CopySettings | None:
    """Return the settings of a copy, changed by the options that are given; None if none is."""
    from skiway.model import v1

    given = {
        "mode": v1.CopyMode.Value(f"COM_{mode.upper()}") if mode else None,
        "key_columns": keys,
        "cursor_column": cursor,
        "schema_changes": v1.SchemaChanges.Value(f"SCH_{schema_changes.upper()}") if schema_changes else None,
        "partition_by": partition_by,
        "sort_by": sort_by,
        "read_partitions": read_partitions,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        return None
    if before is None and mode is None:
        raise typer.BadParameter(
            "the other options of a copy need a mode: append, upsert or replace", param_hint="--copy"
        )
    copy = v1.CopySettings()
    if before is not None:
        copy.CopyFrom(before)
    for name in changes:
        copy.ClearField(name)  # type: ignore[arg-type]
    copy.MergeFrom(v1.CopySettings(**changes))  # type: ignore[arg-type]
    return copy


def _policy(every: str, before: v1.ConnectorPolicy | None = None) -> v1.ConnectorPolicy:
    """Return the policy with the schedule; its other fields are those of `before`."""
    from skiway.model import v1

    policy = v1.ConnectorPolicy()
    if before is not None:
        policy.CopyFrom(before)
    policy.enabled = every != NEVER
    if policy.enabled:
        policy.interval.FromTimedelta(_duration(every))
    return policy


def _interval(policy: v1.ConnectorPolicy) -> timedelta | None:
    """Return the interval of automatic syncs; None if there are none."""
    return policy.interval.ToTimedelta() if policy.enabled and policy.HasField("interval") else None


def _duration(text: str) -> timedelta:
    try:
        return DURATION.read(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {DURATION.takes}, or {NEVER}", param_hint="--every") from None


def _auth(text: str) -> v1.ConnectorAuthSpec:
    from skiway.setup.secrets import auth_from_text

    return auth_from_text(text)


# -- messages to records -----------------------------------------------------------------------------------------------


def _mode(copy: v1.CopySettings) -> str:
    from skiway.model import v1

    return v1.CopyMode.Name(copy.mode).removeprefix("COM_").lower() if copy.mode else ""


def _missed(connector: Connector) -> list[str]:
    """Which changes of its source a connector does not copy."""
    from skiway.client.metastore.connectors import missed_by_copies

    copy = connector.message.copy
    tables = {
        name: (_mode(own) or _mode(copy), own.cursor_column or copy.cursor_column)
        for name, own in [("", copy), *copy.tables.items()]
    }
    return missed_by_copies(connector.kind, connector.uri, tables)


def _catalog_name(call: Call, destination: v1.ConnectorDestination) -> str:
    if destination.catalog_display_name:
        return destination.catalog_display_name
    from skiway.client.metastore import Id

    found = call.lake.catalogs.find(Id(destination.catalog_id.id))
    return found.name if found else "-"


def _namespace_name(call: Call, destination: v1.ConnectorDestination) -> str | None:
    from skiway.client.metastore import Id
    from skiway.client.metastore.calls import dotted

    if destination.namespace.segments:
        return dotted(destination.namespace.segments)
    if not destination.namespace_id.id:
        return None
    found = call.lake.namespaces.find(Id(destination.namespace_id.id))
    return dotted(found.path[1:]) if found else None
