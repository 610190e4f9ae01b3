"""Makes the changes of a plan, one after the other. An error ends it; what is done stays, and the rest can be applied later."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from skiway.client import Metastore
from skiway.client.metastore import Id
from skiway.client.metastore.calls import segments
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError
from skiway.model import v1
from skiway.setup.declarations import (
    CHECKS,
    SECTION_OF,
    Account,
    Catalog,
    Connector,
    Grant,
    Object,
    Pipeline,
    Policy,
    Rule,
    Setup,
    Table,
    Tags,
    View,
)
from skiway.setup.forms import described, object_kind, object_name, plain, schema_of
from skiway.setup.messages import message_of
from skiway.setup.planning import Change, Plan
from skiway.setup.secrets import credentials_of, read_secret

Report = Callable[[str], None]

PROTECTING: Final = ("tags", "policy")
"""While one of these waits, nothing is made visible that it may protect."""
EXPOSING: Final = ("view", "grant")
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
    secrets: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    waiting: list[Change] = field(default_factory=list)
    has_synced: bool = False

    def run(self, plan: Plan, environment: Mapping[str, str]) -> None:
        """Make all changes that do not wait for something."""
        for change in plan.changes:
            if change.sends_credentials:
                read = partial(credentials_of, change.desired.auth.credentials, environment)
                self.credentials[change.name] = _with_place(change, read)
            for name in change.secrets:
                reference = getattr(change.desired, name)
                read_one = partial(read_secret, name, reference.env, reference.file, environment)
                self.secrets.setdefault((change.kind, change.name), {})[name] = _with_place(change, read_one)
        protected = [each for each in plan.changes if _protects(each)]
        for number, change in enumerate(plan.changes):
            if self._must_wait(change):
                self.waiting.append(change)
                continue
            now = _unprotected(change) if change in protected else change
            _with_place(change, partial(self._make, now), left=len(plan.changes) - number - 1)
            self.report(f"{PAST[change.action]} {change.kind} {change.name}".strip())
        if self.waiting:
            raise self._waiting_error()
        for change in protected:  # when it contains what the setup declares
            _with_place(change, partial(self.lake.catalogs.update, (change.name,), protected=True))

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
        match item := change.desired:
            case Account():
                _change_account(self.lake, Id(change.name), item)
            case Connector():
                _connector(self.lake, change, item, self.credentials.get(change.name))
            case Tags():
                _tags(self.lake, change, item)
            case Rule():
                _rule(self.lake, change, item)
            case Pipeline():
                _pipeline(self.lake, change, item)
            case Grant():
                _grant(self.lake, change, item)
            case _:
                _resource(self.lake, change, item, self.secrets.get((change.kind, change.name), {}))


def _protects(change: Change) -> bool:
    """Whether the change makes a catalog protected."""
    if not isinstance(change.desired, Catalog) or change.action == "delete" or not change.desired.protected:
        return False
    return change.action == "create" or "protected" in change.changed


def _unprotected(change: Change) -> Change:
    return dataclasses.replace(change, desired=replace(change.desired, protected=False))


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


def _resource(lake: Metastore, change: Change, item: Any, secrets: Mapping[str, str]) -> None:
    """Change a resource whose keys are the arguments of the client's methods, or are converted to them."""
    kind = "object" if change.kind in ("namespace", "table", "view") else ""
    ref = segments(item.name, resource=kind) if kind else (item.name,) if change.kind == "catalog" else item.name
    collection: Any = getattr(lake, SECTION_OF[change.kind])
    match change.action:
        case "delete":
            collection.delete(ref)
        case "update":
            collection.update(ref, **_arguments(lake, item, change.changed), **secrets)
        case "create":
            for name in _required_secrets(item) - secrets.keys():
                message = f"a new {change.kind} needs a {name}: give {{env: NAME}} or {{file: PATH}}"
                raise InvalidArgument(message, key="field", field=name)
            collection.create(ref, **_arguments(lake, item, item.__struct_fields__), **secrets)


def _required_secrets(item: Any) -> set[str]:
    resource = described(item)
    return {field.name for field in resource.fields if field.is_secret and field.required} if resource else set()


def _arguments(lake: Metastore, item: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The arguments of a call for these keys of a declaration, without secrets. An empty value clears."""
    found: dict[str, Any] = {}
    resource = described(item)
    secrets = resource.secrets if resource else ()
    for key in keys:
        convert = CONVERTED.get((type(item), key))
        if convert is not None:
            found |= convert(lake, item)
        elif key != "name" and key not in secrets:
            found[key] = getattr(item, key) or None
    return found


def _policy_rule(_: Metastore, item: Policy) -> dict[str, Any]:
    mask = item.mask
    if mask is None:
        return {"row_filter": item.row_filter or None}
    return {"mask": mask.kind, "mask_sql": mask.sql or None, "columns": mask.columns}


def _view_columns(_: Metastore, item: View) -> dict[str, Any]:
    columns = [message_of(column, v1.SchemaColumn) for column in item.columns or ()]
    for number, column in enumerate(columns, 1):
        column.ordinal = number
    return {"output_columns": columns}


def _view_reads(_: Metastore, item: View) -> dict[str, Any]:
    return {"base_relations": [segments(name, resource="table") for name in item.reads or ()]}


CONVERTED: Final[Mapping[tuple[type, str], Callable[[Metastore, Any], dict[str, Any]]]] = {
    (Connector, "source"): lambda _, item: {"source": message_of(item.source, v1.ConnectorSource)},
    (Connector, "destination"): lambda _, item: {"destination": message_of(item.destination, v1.ConnectorDestination)},
    (Connector, "schedule"): lambda _, item: {"policy": message_of(item.schedule, v1.ConnectorPolicy)},
    (Connector, "copy"): lambda _, item: {
        "copy": None if item.copy is None else message_of(item.copy, v1.CopySettings)
    },
    (Policy, "on"): lambda lake, item: {"on": [_object_id(lake, each) for each in item.on]},
    (Policy, "row_filter"): _policy_rule,
    (Policy, "mask"): _policy_rule,
    (Table, "columns"): lambda _, item: {"schema": schema_of(item.columns)},
    (View, "columns"): _view_columns,
    (View, "reads"): _view_reads,
    (View, "search_path"): lambda _, item: {"search_path": item.search_path or ()},
}
"""The arguments of the client's methods for keys of declarations that are not arguments themselves."""


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
    changed = _arguments(lake, item, change.changed & {"description", "severity", "estimates_only"})
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


def _grant(lake: Metastore, change: Change, item: Grant) -> None:
    on = _object_id(lake, item.on)
    if change.action == "delete":
        lake.grants.revoke(on, item.to)
    else:
        lake.grants.add(on, item.to, item.privilege)


def _object_id(lake: Metastore, reference: Object) -> v1.ResourceId:
    kind, name = object_kind(reference), object_name(reference)
    path: Sequence[str] = (name,) if kind == "catalog" else segments(name, resource=kind)
    return v1.ResourceId(id=lake.directory.resolve(kind, path), kind=v1.ResourceKind.Value(f"RK_{kind.upper()}"))


def _connector(lake: Metastore, change: Change, item: Connector, credentials: v1.ConnectorCredentials | None) -> None:
    if change.action == "delete":
        lake.connectors.delete(item.name)
        return
    auth = message_of(replace(item.auth, credentials=None), v1.ConnectorAuthSpec)
    if credentials is not None:
        auth.credentials.CopyFrom(credentials)
    keys = change.changed if change.action == "update" else frozenset(item.__struct_fields__)
    given = {**_arguments(lake, item, keys - {"auth", "paused"}), **({"auth": auth} if "auth" in keys else {})}
    if change.action == "update":
        if "paused" in keys:
            given["paused"] = item.paused
        removes = any(each.field == "auth.credentials" and each.after is None for each in change.fields)
        lake.connectors.update(item.name, **given, keep_credentials=credentials is None and not removes)
        return
    if item.paused:  # so that no job starts before it is paused
        given["policy"].enabled = False
    lake.connectors.create(item.name, **given)
    if item.paused:
        lake.connectors.update(item.name, paused=True, policy=message_of(item.schedule, v1.ConnectorPolicy))
