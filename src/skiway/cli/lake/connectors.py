"""`skiway connectors`: commands, and the options for schedules, sources and credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.command import Call, command, confirm, group
from skiway.cli.lake import jobs
from skiway.cli.lake.resources import options_for, state_of
from skiway.cli.options import Yes, duration, key_values
from skiway.foundation.resources import DESCRIPTION, Field
from skiway.presentation.tables import picked

if TYPE_CHECKING:
    from skiway.client.metastore import Connector
    from skiway.model import v1

app = group(
    "connectors",
    "Manage connectors, which mirror tables of other catalogs and folders into a catalog, or copy their rows.",
)

URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
NEVER: Final = "never"


Kind = StrEnum("Kind", ["parquet", "iceberg", "glue", "hive", "unity", "airport", "delta", "csv", "json", "jdbc"])
Mode = StrEnum("Mode", ["both", "metadata", "stats"])
Name = Annotated[str, typer.Argument(metavar="CONNECTOR", help="Name of the connector.")]
Uri = Annotated[
    str,
    typer.Option("--uri", metavar="URI", help="Folder, s3:// URL, or address of a catalog or of a database."),
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
ReadPartitions = Annotated[
    int | None,
    typer.Option("--read-partitions", metavar="N", min=1, help="Connections that read a table of a database at once."),
]
COPY: Final = {
    "copy": "mode",
    "keys": "key_columns",
    "cursor": "cursor_column",
    "schema_changes": "schema_changes",
    "partition_by": "partition_by",
    "sort_by": "sort_by",
    "read_partitions": "read_partitions",
    "expect": "expect",
    "changes": "changes",
}
"""The fields of the settings of a copy, by their options."""
OPTIONS: Final = options_for(
    Field("source_namespace", "Only this namespace of the source; folders have none.", metavar="NAME"),
    Field("source_table", "Only this table of the source.", metavar="NAME"),
    Field("include", "Only tables that match.", many=True, metavar="GLOB"),
    Field("exclude", "No tables that match.", many=True, metavar="GLOB"),
    Field("every", "Interval of automatic syncs, such as 10m, 1h or 1d; or never.", metavar="DURATION"),
    Field(
        "copy",
        "Copy rows into managed tables, instead of mirroring tables.",
        choices=("append", "upsert", "replace"),
    ),
    Field("keys", "Column that identifies a row, for upsert.", many=True, option="--key", metavar="COLUMN"),
    Field("cursor", "Column of a database that grows with every new or changed row.", metavar="COLUMN"),
    Field("schema_changes", "Follow or reject changes of the columns of a copy.", choices=("follow", "reject")),
    Field("partition_by", "Partition of new copies, such as day(ts).", many=True, metavar="PART"),
    Field("changes", "Copy the changes in the log of PostgreSQL, also deleted rows.", type=bool),
    Field("expect", "YAML file with the expectations of a copy, as of a model.", metavar="FILE"),
    Field("sort_by", "Order of the rows of new copies, such as 'ts DESC, id'.", metavar="LIST"),
    DESCRIPTION,
)
"""The options with which connectors are created and changed."""


def _record(call: Call, connector: Connector) -> dict[str, Any]:
    """A connector in the output. It shows whether there are credentials, but never the credentials themselves."""
    message = connector.message
    source, destination, copy = message.source, message.destination, message.copy
    place: dict[str, Any] = {"kind": "-", "uri": "-", "state": "damaged", "catalog": "-", "namespace": None}
    if not connector.damage:
        state = "paused" if connector.is_paused else "active"
        place = {"kind": connector.kind, "uri": connector.uri, "state": state, **_place(call, destination)}
    return {
        **picked(connector, "name", "id"),
        **place,
        "table": destination.table_display_name or None,
        "source_namespace": ".".join(source.namespace.segments) or None,
        "source_table": source.table or None,
        "include": tuple(source.include_tables),
        "exclude": tuple(source.exclude_tables),
        "credentials": bool(message.auth.secret_id),
        "every": _interval(message.policy),
        "description": connector.description,
        "properties": dict(message.properties),
        **state_of(connector),
        "copy": _mode(copy) or None,
        "key_columns": tuple(copy.key_columns),
        "cursor_column": copy.cursor_column or None,
        "changes": copy.changes,
        "expect": copy.expect or None,
        "missed": () if connector.damage else tuple(_missed(connector)),
        "last_sync": None,
        "last_errors": {},
    }


@command(app, "list")
def list_(call: Call, kind: Annotated[Kind | None, typer.Option(help="Only connectors of this kind.")] = None) -> None:
    """List the connectors of the account."""
    found = [_record(call, connector) for connector in call.lake.connectors(kind=kind and kind.value)]
    columns = ["name", "kind", "state", "catalog", "namespace", "uri"]
    call.print_rows(found, columns, empty="there are no connectors; create one with: skiway connectors create")


@command(app, "get")
def get(call: Call, name: Name) -> None:
    """Show a connector, and how its last sync ended."""
    connector = call.lake.connectors.get(name)
    record = _record(call, connector)
    if last := next((job for job in call.lake.jobs(connector=connector.id) if job.is_over), None):
        record |= {"last_sync": last.state, "last_errors": last.errors}
    call.print_record(record)


@command(app, "create", OPTIONS)
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
    properties: Properties = None,
    credential: Credential = None,
    read_partitions: ReadPartitions = None,
    **options: Any,
) -> None:
    """Create a connector.

    It mirrors tables, or copies their rows with --copy. The source is not read before the connector is validated or synced.
    The server reads folders, so a path must exist on the server; a relative path is resolved here.
    """
    address = _absolute(uri)
    every = options["every"]
    created = call.lake.connectors.create(
        name,
        kind=kind.value,
        uri=address,
        catalog=catalog,
        namespace=namespace,
        table=table or "",
        source=_source(options),
        properties={
            **_default_properties(kind, address, options["source_namespace"]),
            **key_values(properties, "--property"),
        },
        auth=_auth(credential) if credential else None,
        policy=_policy(every) if every else None,
        copy=_copy(None, {**options, "read_partitions": read_partitions}),
        description=options["description"],
    )
    lines = [*_missed(created), f"created connector {name}; sync it with: skiway connectors sync {name} --watch"]
    call.print_result("\n".join(lines), _record(call, created))


@command(app, "update", OPTIONS)
def update(
    call: Call,
    name: Name,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="New name.")] = None,
    uri: Annotated[str | None, typer.Option("--uri", metavar="URI", help="New address of the source.")] = None,
    properties: Properties = None,
    credential: Credential = None,
    read_partitions: ReadPartitions = None,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Stop or resume syncing.", show_default=False),
    ] = None,
    **options: Any,
) -> None:
    """Change a connector.

    Options that are not given stay as they are. Lists and properties are replaced as a whole.
    """
    copy_options = {**options, "read_partitions": read_partitions}
    copies = any(copy_options[option] is not None for option in COPY)
    every = options["every"]
    before = call.lake.connectors.get(name).message if copies or every else None
    changes: dict[str, Any] = {
        "name": new_name,
        "uri": uri and _absolute(uri),
        "source": _source(options),
        "properties": key_values(properties, "--property") or None,
        "auth": _auth(credential) if credential else None,
        "policy": _policy(every, before.policy) if every and before else None,
        "copy": _copy(before.copy, copy_options) if before else None,
        "description": options["description"],
        "paused": pause,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("there is nothing to change: give at least one option")
    updated = call.lake.connectors.update(name, **given)
    missed = _missed(updated) if "copy" in given else ()
    call.print_result("\n".join([*missed, f"updated connector {updated.name}"]), _record(call, updated))


@command(app, "delete")
def delete(call: Call, name: Name, yes: Yes = False) -> None:
    """Delete a connector and its credentials.

    The tables that it mirrored are not deleted.
    """
    connector = call.lake.connectors.get(name)
    deleted = _record(call, connector)
    confirm(f"Its credentials are deleted, too. Delete connector {name}?", yes=yes)
    call.lake.connectors.delete(name)
    lines = [f"deleted connector {name}; its mirrored tables are not deleted"]
    if connector.message.copy.changes:
        from skiway.client.metastore.connectors import slots_of

        slots = f"FROM pg_replication_slots WHERE slot_name LIKE '{slots_of(connector.id)}%'"
        sql = f"SELECT pg_drop_replication_slot(slot_name) {slots}"
        lines.append(f"PostgreSQL keeps its log for the slots of the connector; drop them there: {sql}")
    call.print_result("\n".join(lines), deleted)


@command(app, "validate")
def validate(call: Call, name: Name) -> None:
    """Check whether the source responds, with the stored credentials.

    The exit code is 1 if it does not.
    """
    result = call.lake.connectors.validate(name)
    capabilities = dict(sorted(result.capabilities.items()))
    record = {"connector": name, "ok": result.ok, "summary": result.summary, "capabilities": capabilities}
    call.print_result(result.summary, record)
    if not result.ok:
        raise typer.Exit(1)


@command(app, "sync")
def sync(
    call: Call,
    name: Name,
    watch: jobs.Watch = False,
    mode: Annotated[
        Mode, typer.Option(help="Run a job with both passes, or run one pass and wait for it.")
    ] = Mode.both,
    full: Annotated[bool, typer.Option("--full", help="Include known snapshots, and profile files again.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this destination namespace; repeatable.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Only this destination table.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what a copy would load, and wait for it.")
    ] = False,
) -> None:
    """Mirror the tables of a connector, or copy what is new in them.

    A sync records new snapshots and files, then computes statistics with Spark. A copy loads new rows; with --full, it loads
    all of them again. With --watch, the exit code is 1 unless
    all of it succeeded. Ctrl-C does not stop the job.
    """
    selection: dict[str, Any] = {"namespaces": namespace or [], "table": table or ""}
    if mode is Mode.both:
        job = call.lake.connectors.sync(name, full_rescan=full, dry_run=dry_run, **selection)
        jobs.report_start(call, job, {job.message.connector_id.id: name}, watch=watch or dry_run)
        return
    if full or dry_run:
        option = "--full" if full else "--dry-run"
        raise typer.BadParameter(f"{option} is only for jobs: leave out --mode", param_hint=option)
    with call.metastore(timeout_s=None) as lake:
        done = lake.connectors.capture(name, statistics=mode is Mode.stats, **selection)
    errors = {error.table: error.message for error in done.table_errors}
    figures = picked(done, "tables=tables_scanned", "changed=tables_changed", "failed=errors")
    record = {"connector": name, "mode": mode.value, **figures, "errors": errors}
    call.print_result(f"{mode}: {jobs.counts(done)}", record)
    if done.errors:
        for table_name, message in errors.items() if call.is_for_people else ():
            typer.echo(f"  {table_name}: {message}", err=True)
        raise typer.Exit(jobs.PARTIAL if done.errors < done.tables_scanned else 1)


# -- options to messages -----------------------------------------------------------------------------------------------


def _absolute(uri: str) -> str:
    """Return a URL unchanged, and a path as an absolute path."""
    return uri if URL.match(uri) else str(Path(uri).expanduser().resolve())


def _source(options: Mapping[str, Any]) -> v1.ConnectorSource | None:
    """Return the selection of tables of a source; None if there is none."""
    namespace, table, include, exclude = (
        options[name] for name in ("source_namespace", "source_table", "include", "exclude")
    )
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


def _copy(before: v1.CopySettings | None, options: Mapping[str, Any]) -> v1.CopySettings | None:
    """Return the settings of a copy, changed by the options that are given; None if none is."""
    from skiway.model import v1

    changes = {field: options[option] for option, field in COPY.items() if options[option] is not None}
    if not changes:
        return None
    if before is None and "mode" not in changes:
        raise typer.BadParameter(
            "the other options of a copy need a mode: append, upsert or replace", param_hint="--copy"
        )
    if "expect" in changes:
        try:
            changes["expect"] = Path(changes["expect"]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{changes['expect']} cannot be read: {error}", param_hint="--expect") from None
    for field, enum, prefix in (("mode", v1.CopyMode, "COM"), ("schema_changes", v1.SchemaChanges, "SCH")):
        if field in changes:
            changes[field] = enum.Value(f"{prefix}_{changes[field].upper()}")
    copy = v1.CopySettings()
    if before is not None:
        copy.CopyFrom(before)
    for field in changes:
        copy.ClearField(field)  # type: ignore[arg-type]
    copy.MergeFrom(v1.CopySettings(**changes))
    return copy


def _policy(every: str, before: v1.ConnectorPolicy | None = None) -> v1.ConnectorPolicy:
    """Return the policy with the schedule; its other fields are those of `before`."""
    from skiway.model import v1

    policy = v1.ConnectorPolicy()
    if before is not None:
        policy.CopyFrom(before)
    policy.enabled = every != NEVER
    if policy.enabled:
        policy.interval.FromTimedelta(duration(every, "--every", otherwise=f", or {NEVER}"))
    return policy


def _interval(policy: v1.ConnectorPolicy) -> timedelta | None:
    """Return the interval of automatic syncs; None if there are none."""
    return policy.interval.ToTimedelta() if policy.enabled and policy.HasField("interval") else None


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
    return missed_by_copies(connector.kind, connector.uri, tables, changes=copy.changes)


def _place(call: Call, destination: v1.ConnectorDestination) -> dict[str, str | None]:
    """The names of the catalog and the namespace to which a connector writes. Those of deleted ones are not known."""
    from skiway.client.metastore import Id, dotted

    def path(kind: str, own_id: str) -> tuple[str, ...]:
        return (call.lake.directory.path(kind, Id(own_id)) if own_id else None) or ()

    catalog, namespace = destination.catalog_display_name, destination.namespace.segments
    return {
        "catalog": catalog or "".join(path("catalog", destination.catalog_id.id)) or "-",
        "namespace": dotted(namespace or path("namespace", destination.namespace_id.id)[1:]) or None,
    }
