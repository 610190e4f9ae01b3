"""Connectors: sources whose tables are mirrored into a catalog. The data stays where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.catalogs import Description
from skiway.cli.command import Call, noun, verb
from skiway.cli.connector_options import Every, interval_of, policy_of
from skiway.cli.options import pairs

if TYPE_CHECKING:
    from skiway.client.metastore import Connector
    from skiway.model import v1

__all__ = []


app = noun("connectors", __doc__)

URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class Kind(StrEnum):
    """What a source is made of."""

    parquet = "parquet"
    iceberg = "iceberg"
    delta = "delta"


class Mode(StrEnum):
    """What a sync brings home."""

    both = "both"
    metadata = "metadata"
    stats = "stats"


Name = Annotated[str, typer.Argument(metavar="CONNECTOR", help="Its name.")]
Uri = Annotated[str, typer.Option("--uri", metavar="URI", help="A folder, s3://…, or the address of a REST catalog.")]
Include = Annotated[list[str] | None, typer.Option("--include", metavar="GLOB", help="Only such tables; repeatable.")]
Exclude = Annotated[list[str] | None, typer.Option("--exclude", metavar="GLOB", help="No such tables; repeatable.")]
SourceNamespace = Annotated[
    str | None,
    typer.Option("--source-namespace", metavar="NAME", help="This namespace of the source; a folder has none."),
]
SourceTable = Annotated[str | None, typer.Option("--source-table", metavar="NAME", help="This one table of it.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="An option of the source; repeatable.")
]
Credential = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="type=bearer,token=@FILE; also client, aws, cli. A value may be @FILE or $VARIABLE.",
        envvar="SKIWAY_CREDENTIAL",
        show_envvar=True,
    ),
]


@dataclass(frozen=True, slots=True)
class ConnectorRecord:
    """A connector, as it is written. Credentials are never told, only whether there are some."""

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
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, connector: Connector, call: Call) -> ConnectorRecord:
        """What there is to tell of it."""
        told = connector.message
        return cls(
            connector.name,
            str(connector.id),
            connector.kind,
            connector.uri,
            "paused" if connector.is_paused else "active",
            _catalog_name(call, told.destination),
            _namespace_name(call, told.destination),
            told.destination.table_display_name or None,
            ".".join(told.source.namespace.segments) or None,
            told.source.table or None,
            tuple(told.source.include_tables),
            tuple(told.source.exclude_tables),
            bool(told.auth.secret_id),
            interval_of(told.policy),
            connector.description,
            dict(told.properties),
            connector.created_at,
            connector.updated_at,
        )


@verb(app, "list")
def list_(call: Call, kind: Annotated[Kind | None, typer.Option(help="Only those of this kind.")] = None) -> None:
    """List the connectors of the account."""
    found = [ConnectorRecord.of(each, call) for each in call.lake.connectors(kind=kind and kind.value)]
    columns = ["name", "kind", "state", "catalog", "namespace", "uri"]
    call.rows(found, columns, nothing="there are no connectors: skiway connectors create")


@verb(app, "get")
def get(call: Call, name: Name) -> None:
    """Show one connector."""
    call.record(ConnectorRecord.of(call.lake.connectors.get(name), call))


@verb(app, "create")
def create(
    call: Call,
    name: Name,
    kind: Annotated[Kind, typer.Option(help="What the source is made of.")],
    uri: Uri,
    catalog: Annotated[str, typer.Option(metavar="CATALOG", help="Where its tables go.")] = "lake",
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where in the catalog; unless given, as in the source, or as the connector."),
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Another name for the one --source-table.")] = None,
    source_namespace: SourceNamespace = None,
    source_table: SourceTable = None,
    include: Include = None,
    exclude: Exclude = None,
    properties: Properties = None,
    credential: Credential = None,
    every: Every = None,
    description: Description = None,
) -> None:
    """Make a new connector. Nothing is read before it is validated or synced.

    A folder is read by the server, so it must be there for it; a relative path is completed here.
    """
    from skiway.cli.connector_options import auth_of

    address = absolute(uri)
    made = call.lake.connectors.create(
        name,
        kind=kind.value,
        uri=address,
        catalog=catalog,
        namespace=namespace,
        table=table or "",
        source=source_of(source_namespace, source_table, include, exclude),
        properties={**_assumed(kind, address, source_namespace), **pairs(properties, "--property")},
        auth=auth_of(credential) if credential else None,
        policy=policy_of(every) if every else None,
        description=description,
    )
    call.done(
        f"created connector {name}; sync it with: skiway connectors sync {name} --watch", ConnectorRecord.of(made, call)
    )


@verb(app, "update")
def update(
    call: Call,
    name: Name,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Another name for it.")] = None,
    uri: Annotated[str | None, typer.Option("--uri", metavar="URI", help="Where the source is now.")] = None,
    source_namespace: SourceNamespace = None,
    source_table: SourceTable = None,
    include: Include = None,
    exclude: Exclude = None,
    properties: Properties = None,
    credential: Credential = None,
    every: Every = None,
    description: Description = None,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--resume", help="Give it no more jobs, or give it jobs again.", show_default=False),
    ] = None,
) -> None:
    """Change what is given, and keep the rest. Lists of tables and properties are replaced as a whole."""
    from skiway.cli.connector_options import auth_of

    source = source_of(source_namespace, source_table, include, exclude)
    changes: dict[str, Any] = {
        "name": new_name,
        "uri": uri and absolute(uri),
        "source": source,
        "properties": pairs(properties, "--property") or None,
        "auth": auth_of(credential) if credential else None,
        "policy": policy_of(every, call.lake.connectors.get(name).message.policy) if every else None,
        "description": description,
        "paused": pause,
    }
    asked = {key: value for key, value in changes.items() if value is not None}
    if not asked:
        raise typer.BadParameter("nothing is to be changed: give at least one option")
    now = call.lake.connectors.update(name, **asked)
    call.done(f"updated connector {now.name}", ConnectorRecord.of(now, call))


@verb(app, "delete")
def delete(call: Call, name: Name) -> None:
    """Delete a connector and its credentials. What it has mirrored stays."""
    gone = ConnectorRecord.of(call.lake.connectors.get(name), call)
    call.lake.connectors.delete(name)
    call.done(f"deleted connector {name}; the tables that it brought in stay", gone)


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether a source answers, as it is written."""

    connector: str
    ok: bool
    summary: str
    capabilities: dict[str, str]


@verb(app, "validate")
def validate(call: Call, name: Name) -> None:
    """Try whether the source answers, with the credentials that are stored. Exit code 1 if it does not."""
    told = call.lake.connectors.validate(name)
    call.done(told.summary, Validation(name, told.ok, told.summary, dict(sorted(told.capabilities.items()))))
    if not told.ok:
        raise typer.Exit(1)


@verb(app, "sync")
def sync(
    call: Call,
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")] = False,
    mode: Annotated[
        Mode, typer.Option(help="A job that does both; or one pass at once, which this command waits for.")
    ] = Mode.both,
    full: Annotated[bool, typer.Option("--full", help="Look at known snapshots again, too.")] = False,
    namespace: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only in this namespace of the catalog; repeatable.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Only this table, as it is called here.")] = None,
) -> None:
    """Mirror the tables of a connector: new snapshots and files, then statistics by Spark.

    Exit code 0 if all of it succeeded, as far as it was waited for; else 1. Ctrl-C leaves the job running.
    """
    from skiway.cli.jobs import Part, begun, captured

    part = Part(namespace or [], table or "")
    if mode is Mode.both:
        begun(call, name, part, full=full, watch=watch)
        return
    if full:
        raise typer.BadParameter("--full is for jobs: leave out --mode", param_hint="--full")
    captured(call, name, mode.value, part)


def absolute(uri: str) -> str:
    """An address as the server understands it: a path is completed here, where it was typed."""
    return uri if URL.match(uri) else str(Path(uri).expanduser().resolve())


def source_of(
    namespace: str | None, table: str | None, include: list[str] | None, exclude: list[str] | None
) -> v1.ConnectorSource | None:
    """Which tables of a source are meant; None where nothing is said of it."""
    if not (namespace or table or include or exclude):
        return None
    from skiway.client.metastore.names import segments
    from skiway.model import v1

    path = v1.NamespacePath(segments=segments(namespace, resource="namespace")) if namespace else None
    return v1.ConnectorSource(namespace=path, table=table, include_tables=include or [], exclude_tables=exclude or [])


def _assumed(kind: Kind, uri: str, namespace: str | None) -> dict[str, str]:
    """A folder of tables is read as a whole, unless a namespace is named."""
    is_folder = not URL.match(uri) or uri.startswith(("file:", "s3:"))
    return {f"{kind.value}.source": "filesystem"} if kind is not Kind.parquet and is_folder and not namespace else {}


def _catalog_name(call: Call, destination: v1.ConnectorDestination) -> str:
    if destination.catalog_display_name:
        return destination.catalog_display_name
    from skiway.client.metastore import Id

    found = call.lake.catalogs.find(Id(destination.catalog_id.id))
    return found.name if found else "-"


def _namespace_name(call: Call, destination: v1.ConnectorDestination) -> str | None:
    from skiway.client.metastore import Id
    from skiway.client.metastore.names import dotted

    if destination.namespace.segments:
        return dotted(destination.namespace.segments)
    if not destination.namespace_id.id:
        return None
    found = call.lake.namespaces.find(Id(destination.namespace_id.id))
    return dotted(found.path[1:]) if found else None
