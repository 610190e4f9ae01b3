"""Makes the changes of a plan, one after the other. An error ends it; what is done stays, and the rest can be applied later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client import Metastore
from skiway.client.metastore import Id
from skiway.client.metastore.calls import segments
from skiway.config.fields import DURATION
from skiway.errors import NotFound, PreconditionFailed, SkiwayError
from skiway.model import v1
from skiway.setup.declarations import (
    CHECKS,
    Account,
    Catalog,
    Connector,
    Copy,
    Described,
    Destination,
    Grant,
    Namespace,
    Object,
    Pipeline,
    Policy,
    Rule,
    Schedule,
    Setup,
    Source,
    Table,
    TableCopy,
    Tags,
    View,
)
from skiway.setup.forms import described, described_values, object_kind, object_name, plain, schema_of
from skiway.setup.planning import Change, Plan
from skiway.setup.secrets import credentials_of, secret_of

Report = Callable[[str], None]

PROTECTING: Final = ("tags", "policy")
"""While one of these waits, nothing is made visible that it may protect."""
EXPOSING: Final = ("view", "grant")
OBJECT_KINDS: Final[Mapping[str, v1.ResourceKind.ValueType]] = {
    "catalog": v1.RK_CATALOG,
    "namespace": v1.RK_NAMESPACE,
    "table": v1.RK_TABLE,
    "view": v1.RK_VIEW,
}
PAST: Final = {"create": "created", "update": "changed", "delete": "deleted"}


def apply(
    lake: Metastore,
    plan: Plan,
    setup: Setup,
    *,
    report: Report,
    sync: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Make the changes of a plan, and report each. With `sync`, connectors mirror the tables that changes wait for.

    All credentials are read before the first change.
    """
    Applying(lake, setup, report, sync=sync).run(plan, environment)


@dataclass
class Applying:
    """One run: what is done, and what waits for mirrored tables."""

    lake: Metastore
    setup: Setup
    report: Report
    sync: bool = False
    credentials: dict[str, v1.ConnectorCredentials] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    waiting: list[Change] = field(default_factory=list)
    has_synced: bool = False

    def run(self, plan: Plan, environment: Mapping[str, str]) -> None:
        """Make all changes that do not wait for something."""
        for change in plan.changes:
            if change.sends_credentials:
                read = partial(credentials_of, change.desired.auth.credentials, environment)
                self.credentials[change.name] = _with_place(change, read)
            for name in change.secrets:
                read_one = partial(secret_of, getattr(change.desired, name), environment)
                self.secrets.setdefault(change.name, {})[name] = _with_place(change, read_one)
        for number, change in enumerate(plan.changes):
            if self._must_wait(change):
                self.waiting.append(change)
                continue
            _with_place(change, partial(self._make, change), left=len(plan.changes) - number - 1)
            self.report(f"{PAST[change.action]} {change.kind} {change.name}".strip())
        if self.waiting:
            raise self._waiting_error()

    def _must_wait(self, change: Change) -> bool:
        if any(each.kind in PROTECTING for each in self.waiting) and (
            change.kind in EXPOSING or change.action == "delete"
        ):
            return True
        if change.waits_for is None or self._exists(*change.waits_for):
            return False
        if self.sync and not self.has_synced:
            self.has_synced = True
            self._mirror()
            return not self._exists(*change.waits_for)
        return True

    def _exists(self, kind: str, name: str) -> bool:
        try:
            _object_id(self.lake, Object(**{kind: name}))
        except NotFound:
            return False
        return True

    def _mirror(self) -> None:
        for connector in self.setup.connectors or ():
            if not connector.paused and connector.copy is None:  # a copy may take long, and needs a worker
                done = self.lake.connectors.capture(connector.name)
                self.report(f"synced connector {connector.name}: {done.tables_scanned} tables")

    def _waiting_error(self) -> PreconditionFailed:
        missing = sorted({" ".join(each.waits_for) for each in self.waiting if each.waits_for})
        advice = (
            "check that their connectors mirror them"
            if self.has_synced
            else "sync their connectors and apply the setup again, or use --sync"
        )
        return PreconditionFailed(
            f"{len(self.waiting)} changes wait for {', '.join(missing)}, which no sync has mirrored yet: {advice}",
            key="setup.waiting",
        )

    def _make(self, change: Change) -> None:
        desired = change.desired
        match desired:
            case Account():
                _change_account(self.lake, Id(change.name), desired)
            case Catalog():
                _catalog(self.lake, change, desired)
            case Namespace():
                _namespace(self.lake, change, desired)
            case Table():
                _create_table(self.lake, desired)
            case Connector():
                _connector(self.lake, change, desired, self.credentials.get(change.name))
            case View():
                _view(self.lake, change, desired)
            case Tags():
                _tags(self.lake, change, desired)
            case Policy():
                _policy(self.lake, change, desired)
            case Pipeline():
                _pipeline(self.lake, change, desired)
            case Described():
                _described(self.lake, change, desired, self.secrets.get(change.name, {}))
            case Rule():
                _rule(self.lake, change, desired)
            case Grant():
                _grant(self.lake, change, desired)


def _with_place(change: Change, act: Callable[[], Any], *, left: int = 0) -> Any:
    """Run a step. Its error gets the object and the line in the file."""
    try:
        return act()
    except SkiwayError as error:
        place = f" (line {change.line})" if change.line else ""
        rest = f"; {left} changes are left, so apply the setup again" if left else ""
        message = f"cannot {change.action} {change.kind} {change.name}{place}: {error.message}{rest}"
        failed = type(error)(message, key=error.key)
        failed.params = error.params
        raise failed from None


def _changed(change: Change, item: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The keys that differ, as arguments of an update: an empty value clears."""
    return {key: getattr(item, key) or None for key in keys if key in change.changed}


def _change_account(lake: Metastore, account_id: Id, item: Account) -> None:
    quotas = {
        f"{whose}.{name}": float(value)
        for whose in ("caller", "account")
        for name, value in msgspec.structs.asdict(getattr(item.quotas, whose)).items()
        if value
    }
    lake.accounts.update(
        account_id, description=item.description or None, tags=item.tags or None, quotas=quotas or None
    )


def _catalog(lake: Metastore, change: Change, item: Catalog) -> None:
    keys = ("description", "connector_ref", "policy_ref", "properties")
    if change.action == "create":
        lake.catalogs.create((item.name,), **{key: getattr(item, key) or None for key in keys})
    elif change.action == "update":
        lake.catalogs.update((item.name,), **_changed(change, item, keys))
    else:
        lake.catalogs.delete((item.name,))


def _namespace(lake: Metastore, change: Change, item: Namespace) -> None:
    path, keys = segments(item.name, resource="namespace"), ("description", "policy_ref", "properties")
    if change.action == "create":
        lake.namespaces.create(path, **{key: getattr(item, key) or None for key in keys})
    elif change.action == "update":
        lake.namespaces.update(path, **_changed(change, item, keys))
    else:
        lake.namespaces.delete(path)


def _create_table(lake: Metastore, item: Table) -> None:
    lake.tables.create(
        segments(item.name, resource="table"),
        schema=schema_of(item.columns),
        description=item.description or None,
        properties=item.properties or None,
    )


def _view(lake: Metastore, change: Change, item: View) -> None:
    path = segments(item.name, resource="view")
    if change.action == "delete":
        lake.views.delete(path)
        return
    values: dict[str, Any] = {
        "sql": item.sql,
        "description": item.description or None,
        "rights": item.rights,
        "properties": item.properties or None,
        "base_relations": [segments(each, resource="table") for each in item.reads or ()],
        "search_path": item.search_path or (),
        "output_columns": [
            v1.SchemaColumn(name=each.name, logical_type=each.type, nullable=each.nullable, ordinal=number)
            for number, each in enumerate(item.columns or (), 1)
        ],
    }
    if change.action == "create":
        lake.views.create(path, **values)
        return
    named = {"reads": "base_relations", "columns": "output_columns"}
    changed = {named.get(key, key) for key in change.changed}
    lake.views.update(path, **{key: value for key, value in values.items() if key in changed})


def _tags(lake: Metastore, change: Change, item: Tags) -> None:
    """Set the tags of columns, and then remove those of others."""
    table = Id(_object_id(lake, Object(table=item.table)).id)
    wanted = {} if change.action == "delete" else item.columns
    before = lake.policies.tags(table)
    for column, tags in wanted.items():
        if tuple(before.get(column, ())) != tags:
            lake.policies.tag(table, column, tags)
    for column in before.keys() - wanted.keys():
        lake.policies.tag(table, column, ())


def _policy(lake: Metastore, change: Change, item: Policy) -> None:
    if change.action == "delete":
        lake.policies.delete(item.name)
        return
    mask = item.mask
    rule: dict[str, Any] = {"row_filter": item.row_filter or None}
    if mask is not None:
        rule = {"mask": mask.kind, "mask_sql": mask.sql or None, "columns": mask.columns}
    values: dict[str, Any] = {
        "to": item.to,
        "exceptions": item.exceptions,
        "on": [_object_id(lake, each) for each in item.on],
        "tags": item.tags,
        "description": item.description or None,
    }
    if change.action == "create":
        lake.policies.create(item.name, **values, **rule)
        return
    changed = {key: value for key, value in values.items() if key in change.changed}
    lake.policies.update(item.name, **changed, **(rule if change.changed & {"row_filter", "mask"} else {}))


def _rule(lake: Metastore, change: Change, item: Rule) -> None:
    if change.action == "delete":
        lake.rules.delete(item.name)
        return
    (kind,) = (each for each in CHECKS if getattr(item, each) is not None)
    if change.action == "update" and "table" in change.changed:
        lake.rules.delete(item.name)  # a rule stays with its table, so it becomes another one
    if change.action == "create" or "table" in change.changed:
        lake.rules.create(
            item.name,
            Id(_object_id(lake, Object(table=item.table)).id),
            kind,
            plain(getattr(item, kind)),
            severity=item.severity,
            estimates_only=item.estimates_only,
            description=item.description or None,
        )
        return
    changed = _changed(change, item, ("description", "severity"))
    if "estimates_only" in change.changed:
        changed["estimates_only"] = item.estimates_only
    if change.changed & CHECKS.keys():
        changed |= {"kind": kind, "values": plain(getattr(item, kind))}
    lake.rules.update(item.name, **changed)


def _pipeline(lake: Metastore, change: Change, item: Pipeline) -> None:
    if change.action == "delete":
        lake.pipelines.delete(item.name)
    elif change.action == "create":
        lake.pipelines.create(item.files)
    else:
        lake.pipelines.update(item.name, item.files)


def _described(lake: Metastore, change: Change, item: Described, secrets: Mapping[str, str]) -> None:
    resource = described(item)
    assert resource is not None
    collection: Any = getattr(lake, resource.plural)
    match change.action:
        case "delete":
            collection.delete(item.name)
        case "create":
            collection.create(item.name, **described_values(resource, item, None, secrets))
        case "update":
            collection.update(item.name, **described_values(resource, item, change.changed, secrets))


def _grant(lake: Metastore, change: Change, item: Grant) -> None:
    on = _object_id(lake, item.on)
    if change.action == "delete":
        lake.grants.revoke(on, item.to)
    else:
        lake.grants.add(on, item.to, item.privilege)


def _object_id(lake: Metastore, reference: Object) -> v1.ResourceId:
    kind, name = object_kind(reference), object_name(reference)
    path: Sequence[str] = (name,) if kind == "catalog" else segments(name, resource=kind)
    resolve = {
        "catalog": lake.directory.resolve_catalog,
        "namespace": lake.directory.resolve_namespace,
        "table": lake.directory.resolve_table,
        "view": lake.directory.resolve_view,
    }
    return v1.ResourceId(id=resolve[kind](path), kind=OBJECT_KINDS[kind])


# -- connectors --------------------------------------------------------------------------------------------------------


def _connector(lake: Metastore, change: Change, item: Connector, credentials: v1.ConnectorCredentials | None) -> None:
    if change.action == "delete":
        lake.connectors.delete(item.name)
        return
    auth = v1.ConnectorAuthSpec(
        scheme=item.auth.scheme,
        properties=item.auth.properties,
        header_hints=item.auth.header_hints,
        credentials=credentials,
    )
    values: dict[str, Any] = {
        "kind": item.kind,
        "uri": item.uri,
        "description": item.description or None,
        "properties": item.properties or None,
        "source": _source(item.source),
        "destination": _destination(item.destination),
        "auth": auth,
        "policy": _schedule(item.schedule),
        "copy": None if item.copy is None else _copy(item.copy),
    }
    if change.action == "update":
        named = {"schedule": "policy"}
        changed = {named.get(key, key) for key in change.changed}
        given = {key: value for key, value in values.items() if key in changed}
        if "paused" in changed:
            given["paused"] = item.paused
        removes = any(each.field == "auth.credentials" and each.after is None for each in change.fields)
        keep = credentials is None and not removes
        lake.connectors.update(item.name, **given, keep_credentials=keep)
        return
    if item.paused:  # so that no job starts before it is paused
        values["policy"].enabled = False
    lake.connectors.create(item.name, **values)
    if item.paused:
        lake.connectors.update(item.name, paused=True, policy=_schedule(item.schedule))


def _source(item: Source) -> v1.ConnectorSource:
    return v1.ConnectorSource(
        namespace=_path(item.namespace),
        table=item.table or None,
        include_tables=item.include_tables,
        exclude_tables=item.exclude_tables,
        columns=item.columns,
        exclude_columns=item.exclude_columns,
    )


def _copy(item: TableCopy) -> v1.CopySettings:
    return v1.CopySettings(
        mode=v1.CopyMode.Value(f"COM_{item.mode.upper()}") if item.mode else v1.COM_UNSPECIFIED,
        key_columns=item.key_columns,
        cursor_column=item.cursor_column,
        schema_changes=v1.SchemaChanges.Value(f"SCH_{item.schema_changes.upper()}")
        if item.schema_changes
        else v1.SCH_UNSPECIFIED,
        partition_by=item.partition_by,
        sort_by=item.sort_by,
        read_partitions=item.read_partitions,
        tables={name: _copy(own) for name, own in item.tables.items()} if isinstance(item, Copy) else None,
    )


def _destination(item: Destination) -> v1.ConnectorDestination:
    return v1.ConnectorDestination(
        catalog_display_name=item.catalog,
        namespace=_path(item.namespace),
        table_display_name=item.table,
        tables=[
            v1.TableDestination(source=each.source, namespace=_path(each.namespace), table_display_name=each.name)
            for each in item.tables
        ],
    )


def _path(text: str) -> v1.NamespacePath | None:
    return v1.NamespacePath(segments=segments(text, resource="namespace")) if text else None


def _schedule(item: Schedule) -> v1.ConnectorPolicy:
    policy = v1.ConnectorPolicy(enabled=item.enabled, max_parallel=item.max_parallel, latest_n=item.latest)
    if item.every:
        policy.interval.FromTimedelta(DURATION.read(item.every))
    if item.not_before:
        stamp = Timestamp()
        stamp.FromDatetime(datetime.fromisoformat(item.not_before))
        policy.not_before.CopyFrom(stamp)
    if item.mode is not None:
        policy.mode = v1.ReconcileMode.Value(f"RM_{item.mode.upper()}")
    if item.snapshots is not None:
        policy.scope = v1.SnapshotScope.Value(
            "SNS_LATEST_N" if item.snapshots == "latest" else f"SNS_{item.snapshots.upper()}"
        )
    return policy
