"""Reads the setup of an account from a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from skiway.client import Metastore
from skiway.client.metastore import Connector as StoredConnector
from skiway.client.metastore import Id, dotted
from skiway.client.metastore import Policy as StoredPolicy
from skiway.client.metastore import Rule as StoredRule
from skiway.client.metastore import Table as StoredTable
from skiway.client.metastore import View as StoredView
from skiway.client.metastore.calls import segments
from skiway.errors import NotFound, PreconditionFailed
from skiway.foundation.resources import Resource
from skiway.model import v1
from skiway.setup.declarations import (
    CHECKS,
    DESCRIBED,
    Account,
    Auth,
    Catalog,
    Connector,
    Described,
    Destination,
    Grant,
    Mask,
    Namespace,
    Object,
    Pipeline,
    Policy,
    Quota,
    Quotas,
    Rule,
    Schedule,
    SecretRef,
    Setup,
    Table,
    Tags,
    View,
)
from skiway.setup.forms import columns_of, normal
from skiway.setup.messages import declaration_of
from skiway.setup.secrets import default_reference, default_variable

MASKS: Final = ("null", "hash", "partial")
COMMENT: Final = "comment"
"""The property of a managed table that repeats its description."""


@dataclass
class Actual:
    """What a server has: its setup, the ids of its objects, and the connectors that have credentials."""

    setup: Setup
    ids: Mapping[tuple[str, str], Id] = field(default_factory=dict)
    """The ids of catalogs, namespaces, tables and views, by kind and full name."""
    with_credentials: frozenset[str] = frozenset()
    account_id: Id | None = None


def export(lake: Metastore, *, account: str = "") -> Setup:
    """Return the setup of the caller's account. It has references in the place of credentials."""
    return read_actual(lake, account=account).setup


def read_actual(lake: Metastore, *, account: str = "") -> Actual:
    """Read everything that a setup can declare.

    `account` is the id of the caller's account. It is needed only by callers who see several.
    """
    return _Reading(lake, account).run()


def read_rules(lake: Metastore, tables: Iterable[str]) -> Actual:
    """Read only quality rules, and which of these tables exist: for callers who may not read everything else."""
    ids: dict[tuple[str, str], Id] = {}
    for table in tables:
        with suppress(NotFound):
            ids["table", table] = lake.directory.resolve_table(segments(table, resource="table"))
    names = {str(table_id): name for (_, name), table_id in ids.items()}
    rules = []
    for rule in _declarable(lake):
        if str(rule.table_id) not in names:
            path = lake.directory.table_path(rule.table_id)
            names[str(rule.table_id)] = "" if path is None else dotted(path)
        if names[str(rule.table_id)]:
            rules.append(_rule(rule, names[str(rule.table_id)]))
    return Actual(normal(Setup(version=1, rules=tuple(rules))), ids)


@dataclass
class _Reading:
    lake: Metastore
    account: str
    ids: dict[tuple[str, str], Id] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    """Full names by kind and id."""

    def run(self) -> Actual:
        lake = self.lake
        visible = list(_sound(lake.accounts(), "account"))
        own = next((each for each in visible if len(visible) == 1 or each.id == self.account), None)
        catalogs = list(self._met("catalog", lake.catalogs()))
        namespaces = [
            namespace
            for catalog in catalogs
            for namespace in self._met("namespace", lake.namespaces(catalog, recursive=True))
        ]
        managed = {catalog.name for catalog in catalogs if not catalog.message.connector_ref}
        tables, views = list[Table](), list[View]()
        for namespace in namespaces:
            found = self._met("table", lake.tables(namespace))
            tables += [_table(table) for table in found if _is_managed(table, managed)]
            views += map(_view, self._met("view", lake.views(namespace)))
        connectors = list(_sound(lake.connectors(), "connector"))
        setup = Setup(
            version=1,
            account=None if own is None else _account(own.message),
            catalogs=tuple(declaration_of(Catalog, each.message, name=each.name) for each in catalogs),
            namespaces=tuple(declaration_of(Namespace, each.message, name=str(each)) for each in namespaces),
            tables=tuple(tables),
            connectors=tuple(map(self._connector, connectors)),
            views=tuple(views),
            tags=tuple(self._tags()),
            policies=tuple(map(self._policy, _sound(lake.policies(), "policy"))),
            rules=tuple(self._rules()),
            pipelines=tuple(
                Pipeline(name=each.name, files=dict(each.files)) for each in _sound(lake.pipelines(), "pipeline")
            ),
            grants=tuple(self._grants()),
            **{section: tuple(self._described(resource)) for section, (resource, _) in DESCRIBED.items()},
        )
        return Actual(
            normal(setup),
            self.ids,
            frozenset(each.name for each in connectors if each.message.auth.secret_id),
            None if own is None else own.id,
        )

    def _met(self, kind: str, found: Iterable[Any]) -> Iterator[Any]:
        """Yield resources, and remember their names."""
        for resource in _sound(found, kind):
            name = resource.name if kind == "catalog" else dotted(resource.path)
            self.ids[kind, name] = resource.id
            self.names[kind, str(resource.id)] = name
            yield resource

    def _tags(self) -> Iterator[Tags]:
        for table_id, tags in self.lake.policies.tagged():
            name = self.names.get(("table", str(table_id)))
            if name is not None:
                yield Tags(table=name, columns={column: tuple(given) for column, given in tags.items()})

    def _object(self, kind: str, object_id: Id) -> Object | None:
        """A reference to an object; None if it was deleted."""
        name = self.names.get((kind, str(object_id)))
        return None if name is None else Object(**{kind: name})

    def _grants(self) -> Iterator[Grant]:
        for grant in self.lake.grants():
            on = None if grant.damage else self._object(grant.kind, grant.object_id)
            if on is not None:
                yield Grant(to=grant.grantee, privilege=grant.privilege, on=on)  # type: ignore[arg-type]

    def _described(self, resource: Resource) -> Iterator[Described]:
        """The resources of a described kind. References to variables stand for their secrets."""
        for record in _sound(getattr(self.lake, resource.plural)(), resource.name):
            values = {field.name: getattr(record, field.name) for field in resource.fields if not field.is_secret}
            present = {name: value for name, value in values.items() if value is not None}
            reference = SecretRef(env=default_variable(resource.name.upper(), record.name))
            secrets = dict.fromkeys(resource.secrets, reference)
            yield DESCRIBED[resource.plural][1](name=record.name, **present, **secrets)

    def _rules(self) -> Iterator[Rule]:
        """The rules. Those of deleted tables are left out."""
        for rule in _declarable(self.lake):
            name = self.names.get(("table", str(rule.table_id)))
            if name is not None:
                yield _rule(rule, name)

    def _policy(self, policy: StoredPolicy) -> Policy:
        objects = [self._object(kind, object_id) for kind, object_id in policy.objects]
        if objects and not any(objects):
            raise PreconditionFailed(
                f"policy {policy.name} is on objects that were all deleted, and would be on the whole account without them: "
                f"delete it with skiway policies delete, or give it other objects",
                key="setup.policy.objects",
            )
        is_built_in = policy.mask in MASKS
        mask = None
        if policy.mask is not None:
            mask = Mask(
                kind=policy.mask if is_built_in else None,  # type: ignore[arg-type]
                sql="" if is_built_in else policy.mask,
                columns=policy.columns,
            )
        return Policy(
            name=policy.name,
            description=policy.description or "",
            to=policy.subjects,
            exceptions=policy.exceptions,
            on=tuple(each for each in objects if each is not None),
            tags=policy.tags,
            row_filter=policy.row_filter or "",
            mask=mask,
        )

    def _connector(self, connector: StoredConnector) -> Connector:
        message = connector.message
        credentials = default_reference(connector.name) if message.auth.secret_id else None
        return declaration_of(
            Connector,
            message,
            name=connector.name,
            destination=self._destination(message.destination),
            auth=declaration_of(Auth, message.auth, credentials=credentials),
            schedule=declaration_of(Schedule, message.policy),
            paused=connector.is_paused,
        )

    def _destination(self, message: v1.ConnectorDestination) -> Destination:
        """The destination by names. Ids of deleted objects have none, and are left out."""

        def path(kind: str, found: v1.ResourceId) -> tuple[str, ...]:
            name = self.names.get((kind, found.id), "")
            return segments(name, resource=kind) if name else ()

        namespace = path("namespace", message.namespace_id)[1:] or message.namespace.segments
        return declaration_of(
            Destination,
            message,
            catalog=self.names.get(("catalog", message.catalog_id.id), message.catalog_display_name),
            namespace=dotted(namespace),
            table="".join(path("table", message.table_id)[-1:]) or message.table_display_name,
        )


def _sound(found: Iterable[Any], kind: str) -> Iterator[Any]:
    """The resources; raise for one with a damaged record, without which the export would not be complete."""
    for each in found:
        if each.damage:
            raise PreconditionFailed(
                f"{kind} {each.name} is damaged, so the setup cannot be read: run skiway check on the server",
                key="resource.damaged",
            )
        yield each


def _is_managed(table: StoredTable, managed_catalogs: set[str]) -> bool:
    """Whether users created the table; a connector creates the others."""
    is_copy = "skiway.ingest.connector" in table.properties
    return table.path[0] in managed_catalogs and table.upstream is None and bool(table.schema_json) and not is_copy


def _account(message: v1.Account) -> Account:
    quotas = Quotas(caller=_quota(message, "caller"), account=_quota(message, "account"))
    return declaration_of(Account, message, quotas=quotas)


def _quota(message: v1.Account, whose: str) -> Quota:
    own = {name.partition(".")[2]: value for name, value in message.quotas.items() if name.startswith(f"{whose}.")}
    return Quota(**{name: value if name == "per_second" else int(value) for name, value in own.items()})  # type: ignore[arg-type]


def _table(table: StoredTable) -> Table:
    properties = {key: value for key, value in table.properties.items() if key != COMMENT}
    columns = columns_of(json.loads(table.schema_json))
    return declaration_of(Table, table.message, name=dotted(table.path), columns=columns, properties=properties)


def _view(view: StoredView) -> View:
    reads = tuple(
        dotted((each.catalog or view.path[0], *each.path, each.name)) for each in view.message.base_relations
    )  # the default is the view's own catalog
    return declaration_of(View, view.message, name=dotted(view.path), sql=dict(view.sql), reads=reads or None)


def _declarable(lake: Metastore) -> Iterator[StoredRule]:
    """The rules that people declare. Expectations belong to the files of pipelines."""
    return (rule for rule in _sound(lake.rules(), "rule") if rule.kind != "expectation")


def _rule(rule: StoredRule, table: str) -> Rule:
    values = {key: tuple(each) if isinstance(each, list) else each for key, each in rule.values.items()}
    check: dict[str, Any] = {rule.kind: CHECKS[rule.kind](**values)}
    return Rule(
        name=rule.name,
        table=table,
        severity="warning" if rule.severity == "warning" else "error",
        description=rule.description or "",
        estimates_only=rule.estimates_only,
        **check,
    )
