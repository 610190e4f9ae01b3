"""The kinds of resources: for each, its message, its canonical key, and its further keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf.message import Message

from skiway.foundation.resources import PLAIN
from skiway.metastore.records import keys
from skiway.metastore.records.names import folded
from skiway.model import v1

M = TypeVar("M", bound=Message)
C = TypeVar("C", v1.Namespace, v1.Table, v1.View)


@dataclass(frozen=True, slots=True)
class Kind(Generic[M]):
    """The messages of a kind of resource, and the keys of their pointers.

    `title` is the name of a resource in messages. `names` are the keys besides the canonical one; each is unique.
    `folds` are the additional keys in managed catalogs; see `folding`. `by_id` returns the canonical key for the ids of an account
    and a resource in it, and `by_name` its key by name if that is unique in the account.
    """

    noun: str
    message: type[M]
    title: Callable[[M], str]
    key: Callable[[M], str]
    names: Callable[[M], tuple[str, ...]] = lambda _: ()
    folds: Callable[[M], tuple[str, ...]] = lambda _: ()
    by_id: Callable[[str, str], str] = lambda *_: ""
    by_name: Callable[[str, str], str] = lambda *_: ""

    @property
    def number(self) -> v1.ResourceKind.ValueType:
        """The kind in ids."""
        return v1.ResourceKind.Value(f"RK_{self.noun.upper()}")


def _kind(
    noun: str,
    message: type[M],
    by_id: Callable[[str, str], str],
    names: Callable[[Any], tuple[str, ...]],
    folds: Callable[[Any], tuple[str, ...]] = lambda _: (),
    by_name: Callable[[str, str], str] = lambda *_: "",
) -> Kind[M]:
    """A kind of resource of an account with an id and a display name."""

    def key(resource: Any) -> str:
        return by_id(resource.resource_id.account_id, resource.resource_id.id)

    return Kind(noun, message, lambda resource: cast(Any, resource).display_name, key, names, folds, by_id, by_name)


def _named(
    noun: str, message: type[M], by_id: Callable[[str, str], str], by_name: Callable[[str, str], str]
) -> Kind[M]:
    """A kind whose resources have names that are unique in the account, and no other keys."""

    def names(resource: Any) -> tuple[str, ...]:
        return (by_name(resource.resource_id.account_id, resource.display_name),)

    return _kind(noun, message, by_id, names, by_name=by_name)


def folding(kind: Kind[C], managed: Callable[[str], bool]) -> Kind[C]:
    """The same kind, with case-insensitive names in catalogs for which `managed` returns true.

    `managed` is only called for names where case makes a difference.
    """

    def names(of: C) -> tuple[str, ...]:
        plain: tuple[str, ...] = kind.names(of)
        more: tuple[str, ...] = tuple(key for key in kind.folds(of) if key not in plain)
        return (*plain, *more) if more and managed(of.catalog_id.id) else plain

    return replace(kind, names=names)


def _catalog_names(of: v1.Catalog) -> tuple[str, ...]:
    own = of.resource_id.account_id, of.resource_id.id
    name = keys.catalog_name(own[0], of.display_name)
    return (name, keys.protected_catalog(*own)) if of.protected else (name,)


def _namespace_names(of: v1.Namespace) -> tuple[str, ...]:
    account, catalog, path = of.resource_id.account_id, of.catalog_id.id, (*of.parents, of.display_name)
    return keys.namespace_path(account, catalog, path), keys.namespace_level(account, catalog, path)


def _namespace_folds(of: v1.Namespace) -> tuple[str, ...]:
    path = *of.parents, of.display_name
    return (keys.namespace_fold(of.resource_id.account_id, of.catalog_id.id, path),)


def _relation_folds(of: v1.Table | v1.View) -> tuple[str, ...]:
    # A name in lower case is its own fold and needs no extra key; another name also reserves the one in lower case.
    return (keys.relation_name(of.resource_id.account_id, of.namespace_id.id, folded(of.display_name)),)


def _relation_names(of: v1.Table | v1.View) -> tuple[str, ...]:
    place = of.resource_id.account_id, of.namespace_id.id, of.display_name
    return (keys.table_name if isinstance(of, v1.Table) else keys.view_name)(*place), keys.relation_name(*place)


def _snapshot_names(of: v1.Snapshot) -> tuple[str, ...]:
    # A snapshot without a time sorts as the oldest.
    micros = of.upstream_created_at.ToMicroseconds()
    return (keys.snapshot_time(of.table_id.account_id, of.table_id.id, micros, of.snapshot_id),)


def _statistics_key(of: str) -> Callable[[v1.TableStats | v1.ColumnStatsSet | v1.FileStatsSet], str]:
    return lambda stats: keys.statistics(stats.table_id.account_id, stats.table_id.id, stats.snapshot_id, of=of)


def _statistics_title(stats: v1.TableStats | v1.ColumnStatsSet | v1.FileStatsSet) -> str:
    return f"{stats.table_id.id}@{stats.snapshot_id}"


def _job_names(of: v1.Job) -> tuple[str, ...]:
    """The listings of a job and, until it finishes, its place in the queue and the reservation of its work."""
    place = of.account_id, of.job_id
    created = of.created_at.ToMicroseconds()
    listed = tuple(
        keys.job_listing(of.account_id, connector_id=connector, state=state, created_micros=created, job_id=of.job_id)
        for connector in {"", of.connector_id.id}
        for state in {0, of.state}
    )
    active = keys.job_active(of.account_id, work_digest(of))
    match of.state:
        case v1.JS_QUEUED:
            return *listed, active, keys.job_ready(of.next_attempt_at.ToMicroseconds(), *place)
        case v1.JS_RUNNING:
            return *listed, active, keys.job_leased(of.lease_expires_at.ToMicroseconds(), *place)
        case _:
            return listed


def work_digest(of: v1.Job) -> str:
    """A digest that is equal for jobs that do the same work."""
    work = v1.Job(connector_id=of.connector_id, full_rescan=of.full_rescan, scope=of.scope, modes=of.modes)
    work.dry_run = of.dry_run
    if of.HasField("table_id"):
        work.table_id.CopyFrom(of.table_id)
    if of.HasField("maintenance"):
        work.maintenance.CopyFrom(of.maintenance)
    if of.HasField("quality"):
        work.quality.CopyFrom(of.quality)
    if of.HasField("pipeline"):
        work.pipeline.CopyFrom(of.pipeline)
    return sha256(work.SerializeToString(deterministic=True)).hexdigest()


def _lease_names(of: v1.QueryLease) -> tuple[str, ...]:
    query = of.descriptor
    return (keys.lease_active(query.account_id, query.query_id),) if query.state == v1.LS_ACTIVE else ()


def _transaction_names(of: v1.Transaction) -> tuple[str, ...]:
    due = keys.transaction_due(of.expires_at.ToMicroseconds(), of.account_id, of.transaction_id)
    opened = keys.transaction_open(of.account_id, of.owner, of.transaction_id)
    return (due, opened) if of.state == v1.TX_OPEN else (due,)


def _branch_names(of: v1.Branch) -> tuple[str, ...]:
    if of.state == v1.BS_DELETED:
        return ()
    return (keys.branch_name(of.resource_id.account_id, of.catalog_id.id, of.display_name),)


def _rule_names(of: v1.QualityRule) -> tuple[str, ...]:
    account = of.resource_id.account_id
    return keys.rule_name(account, of.display_name), keys.rule_of_table(account, of.table_id.id, of.display_name)


def _result_names(of: v1.RuleResults) -> tuple[str, ...]:
    """The place of the results among those with the same status. The first results of a rule may be unknown."""
    if not of.last_decided:
        return ()
    status = v1.RuleStatus.Name(of.last_decided).removeprefix("RST_").lower()
    return (keys.rule_status(of.rule_id.account_id, status, of.table_id.id, of.rule_id.id, of.rule_name),)


ACCOUNT = Kind(
    "account",
    v1.Account,
    title=lambda of: of.display_name,
    key=lambda of: keys.account(of.resource_id.id),
    names=lambda of: (keys.account_name(of.display_name),),
    by_id=lambda _, account_id: keys.account(account_id),
    by_name=lambda _, name: keys.account_name(name),
)
CATALOG = _kind("catalog", v1.Catalog, keys.catalog, _catalog_names, by_name=keys.catalog_name)
NAMESPACE = Kind(
    "namespace",
    v1.Namespace,
    title=lambda of: ".".join((*of.parents, of.display_name)),
    key=lambda of: keys.namespace(of.resource_id.account_id, of.resource_id.id),
    names=_namespace_names,
    folds=_namespace_folds,
    by_id=keys.namespace,
)
TABLE = _kind("table", v1.Table, keys.table, _relation_names, _relation_folds)
VIEW = _kind("view", v1.View, keys.view, _relation_names, _relation_folds)
SNAPSHOT = Kind(
    "snapshot",
    v1.Snapshot,
    title=lambda of: str(of.snapshot_id),
    key=lambda of: keys.snapshot(of.table_id.account_id, of.table_id.id, of.snapshot_id),
    names=_snapshot_names,
)
TABLE_STATS = Kind("table_stats", v1.TableStats, title=_statistics_title, key=_statistics_key("table"))
COLUMN_STATS = Kind("column_stats", v1.ColumnStatsSet, title=_statistics_title, key=_statistics_key("columns"))
FILE_STATS = Kind("file_stats", v1.FileStatsSet, title=_statistics_title, key=_statistics_key("files"))
GRANT = Kind(
    "grant",
    v1.Grant,
    title=lambda of: f"to {of.grantee}",
    key=lambda of: keys.grant(of.object_id.account_id, of.object_id.id, of.grantee),
    names=lambda of: (keys.grant_of(of.object_id.account_id, of.grantee, of.object_id.id),),
)
BRANCH = _kind("branch", v1.Branch, keys.branch, _branch_names)
POLICY = _named("policy", v1.Policy, keys.policy, keys.policy_name)
COLUMN_TAGS = Kind(
    "column_tags",
    v1.ColumnTags,
    title=lambda of: of.table_id.id,
    key=lambda of: keys.column_tags(of.table_id.account_id, of.table_id.id),
)
RULE = _kind("rule", v1.QualityRule, keys.rule, _rule_names, by_name=keys.rule_name)
RULE_RESULTS = Kind(
    "rule_results",
    v1.RuleResults,
    title=lambda of: of.rule_name,
    key=lambda of: keys.rule_results(of.rule_id.account_id, of.rule_id.id),
    names=_result_names,
)
WEBHOOK = _named("webhook", v1.Webhook, keys.webhook, keys.webhook_name)
PIPELINE = _named("pipeline", v1.Pipeline, keys.pipeline, keys.pipeline_name)
CONNECTOR = _named("connector", v1.Connector, keys.connector, keys.connector_name)
JOB = Kind(
    "job",
    v1.Job,
    title=lambda of: of.job_id,
    key=lambda of: keys.job(of.account_id, of.job_id),
    names=_job_names,
    by_id=keys.job,
)
JOB_LOG = Kind(
    "job_log",
    v1.JobLog,
    title=lambda of: of.job_id,
    key=lambda of: keys.job_log(of.account_id, of.job_id),
)
LEASE = Kind(
    "lease",
    v1.QueryLease,
    title=lambda of: of.descriptor.query_id,
    key=lambda of: keys.lease(of.descriptor.account_id, of.descriptor.query_id),
    names=_lease_names,
)
TRANSACTION = Kind(
    "transaction",
    v1.Transaction,
    title=lambda of: of.transaction_id,
    key=lambda of: keys.transaction(of.account_id, of.transaction_id),
    names=_transaction_names,
)
IDEMPOTENCY = Kind(
    "idempotency",
    v1.IdempotencyRecord,
    title=lambda of: of.key,
    key=lambda of: keys.idempotency(of.account_id, of.operation, of.key),
)
OF_TABLE: Final = (
    *(v1.Snapshot, v1.TableStats, v1.ColumnStatsSet, v1.FileStatsSet, v1.StatisticsHistory),
    *(v1.QualityRule, v1.RuleResults),
)
"""The messages of what belongs to a table, which have its id."""

PLAIN_KINDS: Final[Mapping[str, Kind[Any]]] = {
    plain.name: _named(
        plain.name,
        getattr(v1, plain.title),
        keys.in_account(f"{plain.plural}/by-id"),
        keys.in_account(f"{plain.plural}/by-name"),
    )
    for plain in PLAIN
}
"""The kinds without code of their own, by name."""

KINDS: Final[tuple[Kind[Any], ...]] = (
    ACCOUNT,
    CATALOG,
    NAMESPACE,
    TABLE,
    VIEW,
    SNAPSHOT,
    TABLE_STATS,
    COLUMN_STATS,
    FILE_STATS,
    GRANT,
    BRANCH,
    POLICY,
    COLUMN_TAGS,
    RULE,
    RULE_RESULTS,
    WEBHOOK,
    PIPELINE,
    CONNECTOR,
    JOB,
    JOB_LOG,
    LEASE,
    TRANSACTION,
    IDEMPOTENCY,
    *PLAIN_KINDS.values(),
)
