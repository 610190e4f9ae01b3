"""The keys of the pointer store. Every key that Skiway uses is made here, one function per key.

Each resource has one canonical key, by id, and further keys by name or location. All of them point to the same blob.
The blobs of a resource are stored in a folder named after its canonical key, so the address of a blob tells which
resource it belongs to.

A function whose last parameters are optional returns, without them, the prefix of all such keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Protocol
from urllib.parse import unquote

from skiway.metastore.records.names import encoded, folded
from skiway.storage import Pointer

MAX = 2**63 - 1
ACCOUNTS: Final = "/accounts/"
QUEUE: Final = "/queue/"
SCHEDULE: Final = "/schedule/"
PIPELINE_SCHEDULE: Final = "/pipeline-schedule/"
SECRETS: Final = "/secrets/"
WEBHOOKS: Final = "/webhooks/"
READINESS: Final = "/platform/readiness"
"""Never exists: reading it shows whether the store answers."""

AIRPORT_SIGNING_KEY: Final = "/platform/keys/airport"
PLACES: Final = "/places/"
"""Holds the key that signs tickets and transaction ids, not a blob's address."""


def token_use(sha256: str = "") -> str:
    """Holds when the token with this hash was last used, not a blob's address."""
    return f"/platform/tokens/{sha256}"


def ended_session(session_id: str) -> str:
    """Exists, until the session would expire, if a session of the explorer has ended."""
    return f"/platform/sessions/{session_id}"


# --- keys and blobs ---------------------------------------------------------------------------------------------------


def folder(key: str) -> str:
    """The folder of the blobs of the resource with this canonical key."""
    return key.removeprefix("/")


def owner(pointer: Pointer) -> str:
    """The canonical key of the resource that the pointer's blob belongs to."""
    return "/" + pointer.blob_uri.rsplit("/", 2)[0]


def of_blob(uri: str) -> str | None:
    """The canonical key of the resource that a blob belongs to; None for a blob outside of the metastore's folders."""
    key = "/" + uri.rpartition("/")[0].rpartition("/")[0]
    return key if key.startswith((ACCOUNTS, "/platform/")) else None


def decoded(segment: str) -> str:
    """The name or id that a part of a key is made from."""
    return unquote(segment)


def last_segment(key: str) -> str:
    """The last segment of a key: of a canonical key, the id."""
    return key.rpartition("/")[2]


def is_plain(key: str) -> bool:
    """Whether the pointer at this key belongs to no resource: it holds a value itself, or it expires."""
    return not key.startswith((ACCOUNTS, QUEUE)) or key.split("/")[3:4] == ["idempotency"]


def closing(key: str) -> str:
    """The marker that nothing may be added to the resource with this canonical key, set while it is deleted or moved."""
    return f"/closing{key}"


# --- accounts ---------------------------------------------------------------------------------------------------------


def of_account(account_id: str) -> str:
    """The prefix of all keys of an account, except for the account's own."""
    return f"{ACCOUNTS}{encoded(account_id)}/"


def account_of(key: str) -> str:
    """The prefix that the keys of the same account share; of an account's own keys, the prefix of all accounts."""
    _, first, second, *_ = key.split("/")
    return ACCOUNTS if second in ("by-id", "by-name") else f"/{first}/{second}/"


def account_prefix(key: str) -> str:
    """The first two segments of a key below `ACCOUNTS`, with a slash: the prefix of one account's keys."""
    return "/".join(key.split("/")[:3]) + "/"


def account(account_id: str = "") -> str:
    return f"{ACCOUNTS}by-id/{encoded(account_id)}"


def account_name(name: str = "") -> str:
    return f"{ACCOUNTS}by-name/{encoded(name)}"


# --- catalogs, namespaces, tables and views ---------------------------------------------------------------------------


class Key(Protocol):
    """Returns the key for an account and an id or name in it; without one, the prefix of all."""

    def __call__(self, account_id: str, name: str = "", /) -> str: ...


def in_account(folder: str) -> Key:
    """The keys in a folder of an account, by id or name."""
    return lambda account_id, name="": f"{of_account(account_id)}{folder}/{encoded(name)}"


catalog, catalog_name, protected_catalog = map(in_account, ("catalogs/by-id", "catalogs/by-name", "catalogs/protected"))
namespace = in_account("namespaces/by-id")
table, view = in_account("tables/by-id"), in_account("views/by-id")
policy, policy_name = in_account("policies/by-id"), in_account("policies/by-name")
rule, rule_name = in_account("rules/by-id"), in_account("rules/by-name")
pipeline, pipeline_name = in_account("pipelines/by-id"), in_account("pipelines/by-name")
connector, connector_name = in_account("connectors/by-id"), in_account("connectors/by-name")
webhook, webhook_name = in_account("webhooks/by-id"), in_account("webhooks/by-name")
rule_results = in_account("rule-results/by-rule")
job_log = in_account("job-logs/by-job")
column_tags = in_account("column-tags/by-table")
"""The tags of the columns of a table. They stay when the table is dropped, because it can be restored."""


def _by_account(prefix: str) -> Key:
    """The keys of what holds a value itself, not a blob's address, by account and id."""
    return lambda account_id, own_id="": f"{prefix}{encoded(account_id)}/{encoded(own_id)}"


automatic_profile = _by_account("/automatic-profiles/")
"""Holds the snapshot of a table for which the last automatic profile was started. It expires."""
folder_claim = _by_account("/folders/")
"""Holds when this store claimed the warehouse folder of a table."""
export = _by_account("/exports/")
"""Holds where the Iceberg metadata of a mirrored table is, or why it has none."""
schedule, pipeline_schedule = _by_account(SCHEDULE), _by_account(PIPELINE_SCHEDULE)
"""Hold when a connector's next job, or a pipeline, is due."""


def namespace_path(account_id: str, catalog_id: str, path: Sequence[str] = ()) -> str:
    """Followed by a slash, the prefix of all namespaces below `path`."""
    return "/".join((f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-path", *map(encoded, path)))


def namespace_level(account_id: str, catalog_id: str, path: Sequence[str], *, depth: int | None = None) -> str:
    """The key of a namespace among those of the same depth.

    The path of a parent at the depth of its children, followed by a slash, is the prefix of exactly these children.
    """
    level = len(path) if depth is None else depth
    base = f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-depth/{level}"
    return "/".join((base, *map(encoded, path)))


def namespace_fold(account_id: str, catalog_id: str, path: Sequence[str]) -> str:
    """One key for all paths that differ in case only. Namespaces of managed catalogs reserve it."""
    base = f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-fold"
    return "/".join((base, *(encoded(folded(segment)) for segment in path)))


class _RelationKey(Protocol):
    def __call__(self, account_id: str, namespace_id: str, name: str = "", /) -> str: ...


def _in_namespace(folder: str) -> _RelationKey:
    """The keys by name in a namespace."""
    return lambda account_id, namespace_id, name="": (
        f"{of_account(account_id)}namespaces/{encoded(namespace_id)}/{folder}/by-name/{encoded(name)}"
    )


table_name, view_name, relation_name = map(_in_namespace, ("tables", "views", "relations"))
"""Tables and views share one set of names: both also reserve the key of a relation."""


def is_relation_name(key: str) -> bool:
    """Whether this is the key that tables and views share."""
    return "/relations/" in key


# --- branches of the lake ---------------------------------------------------------------------------------------------

branch, branch_base = in_account("branches/by-id"), in_account("branches/bases")
"""The record of a branch, and the list of what its catalog contained when it was created."""


def branch_name(account_id: str, catalog_id: str, name: str = "") -> str:
    """The branches of a catalog by name. A deleted one has none."""
    return f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/branches/by-name/{encoded(name)}"


def overlay(account_id: str = "", branch_id: str = "") -> str:
    """The prefix of what a branch has changed: followed by the key on main, it holds the version and the blob's address."""
    return "/branches/" + (f"{encoded(account_id)}/{encoded(branch_id)}" if account_id else "")


def is_branch_base(key: str) -> bool:
    """Whether this is the key of the list of what a catalog contained when a branch was created."""
    return key.startswith(ACCOUNTS) and key.split("/")[3:5] == ["branches", "bases"]


def own_of_branch(account_id: str, catalog_id: str) -> tuple[str, ...]:
    """The prefixes of the keys that a branch of a catalog has of its own; it shares all others with main."""
    account, segment = of_account(account_id), encoded(account_id)
    objects = (f"{account}namespaces/", tables_of(account_id), f"{account}views/")
    inside = (*objects, f"{account}catalogs/{encoded(catalog_id)}/namespaces/")
    folders = ("dropped", "history", "written", "expected", "plans", "reports", "usage", "exports")
    others = (f"/{folder}/{segment}/" for folder in folders)
    return (*inside, *map(closing, inside), f"{account}idempotency/", *others)


def shared_by_branches(account_id: str) -> tuple[str, ...]:
    """The prefixes of the keys of main that statements on a branch write: what protects files, and open transactions."""
    account = of_account(account_id)
    return (f"{account}leases/", f"{account}transactions/", folder_claim(account_id), "/pins/", transaction_due())


def tables_of(account_id: str) -> str:
    """The prefix of all keys of tables and of what belongs to them, except for names."""
    return f"{of_account(account_id)}tables/"


def is_event(key: str) -> bool:
    """Whether the pointer at this key is an event."""
    return key.startswith("/events/")


# --- grants ----------------------------------------------------------------------------------------------------------


def grant(account_id: str, object_id: str = "", grantee: str = "") -> str:
    """Without a grantee, the prefix of the grants on an object; without an object, of all grants of the account."""
    prefix = f"{of_account(account_id)}grants/by-object/"
    return f"{prefix}{encoded(object_id)}/{encoded(grantee)}" if object_id else prefix


def grants_on(key: str) -> str:
    """The prefix of the grants on the object with this canonical key."""
    return f"{account_prefix(key)}grants/by-object/{last_segment(key)}/"


def grant_of(account_id: str, grantee: str, object_id: str = "") -> str:
    """The grants of a grantee."""
    return f"{of_account(account_id)}grants/by-grantee/{encoded(grantee)}/{encoded(object_id)}"


# --- quality rules ----------------------------------------------------------------------------------------------------


def rule_of_table(account_id: str, table_id: str, name: str = "") -> str:
    """The rules of a table, by name. They stay when the table is dropped, because it can be restored."""
    return f"{of_account(account_id)}rules/by-table/{encoded(table_id)}/{encoded(name)}"


def rule_status(account_id: str, status: str, table_id: str = "", rule_id: str = "", name: str = "") -> str:
    """The results of rules by their last status, `passed` or `failed`. Without a table, the prefix of all with the status."""
    prefix = f"{of_account(account_id)}rule-results/by-status/{status}/"
    return prefix + ("/".join(map(encoded, (table_id, rule_id, name))) if table_id else "")


# --- snapshots, statistics and profiles of a table --------------------------------------------------------------------


def of_table(account_id: str, table_id: str) -> str:
    """The prefix of all snapshots, statistics and profiles of a table."""
    return f"{of_account(account_id)}tables/{encoded(table_id)}/"


def table_of(key: str) -> str | None:
    """The canonical key of the table that a snapshot's or statistics' key belongs to; None for other keys."""
    parts = key.split("/")
    if len(parts) < 6 or parts[3] != "tables" or parts[5] != "snapshots":
        return None
    return "/".join((*parts[:4], "by-id", parts[4]))


def snapshot(account_id: str, table_id: str, snapshot_id: int | None = None) -> str:
    prefix = f"{of_table(account_id, table_id)}snapshots/by-id/"
    return prefix if snapshot_id is None else f"{prefix}{snapshot_id:019d}"


def snapshot_time(account_id: str, table_id: str, moment_micros: int | None = None, snapshot_id: int = MAX) -> str:
    """Sorted from new to old: both numbers count down.

    Without a snapshot id, the key that sorts before all of a moment.
    """
    prefix = f"{of_table(account_id, table_id)}snapshots/by-time/"
    if moment_micros is None:
        return prefix
    return f"{prefix}{MAX - moment_micros:019d}-{MAX - snapshot_id:019d}"


def current_snapshot(account_id: str, table_id: str) -> str:
    """Holds the id of the current snapshot, not a blob's address."""
    return f"{of_table(account_id, table_id)}snapshots/current"


def is_current(key: str) -> bool:
    """Whether this is the key of a table's current snapshot."""
    return key.endswith("/snapshots/current")


def statistics(account_id: str, table_id: str, snapshot_id: int, *, of: str) -> str:
    return f"{of_table(account_id, table_id)}snapshots/{snapshot_id:019d}/stats/{of}"


def profile_index(account_id: str, table_id: str) -> str:
    """The index of a table's file profiles. It is stored with the snapshots, so it is deleted with them."""
    return f"{of_table(account_id, table_id)}snapshots/profiles/index"


def profile_part(account_id: str, table_id: str, digest: str = "") -> str:
    return f"{of_table(account_id, table_id)}snapshots/profiles/parts/{digest}"


def statistics_history(account_id: str, table_id: str) -> str:
    """The history of a table's statistics. It is stored with the snapshots, so it is deleted with them."""
    return f"{of_table(account_id, table_id)}snapshots/profiles/history"


# --- managed tables ---------------------------------------------------------------------------------------------------


def place(scheme: str, bucket: str, path: str) -> str:
    """Holds for which table a folder outside of the warehouse is claimed, not a blob's address."""
    return PLACES + "/".join(encoded(each) or "-" for each in (scheme, bucket, *path.strip("/").split("/")))


def place_owner(account_id: str, table_id: str, folder: str) -> str:
    """The value of a claimed folder."""
    return "/".join(map(encoded, (account_id, table_id, folder)))


def expected_clients(account_id: str, table_id: str) -> str:
    """Prefix of the REST clients that lost a commit race for a table and are about to retry, by the snapshots they add.

    Each pointer holds the client's place in the line, not a blob's address, until it expires.
    """
    return f"/expected/{encoded(account_id)}/{encoded(table_id)}/"


def dropped(account_id: str, namespace_id: str, name: str = "", table_id: str = "") -> str:
    """Holds, until it expires, when a table was dropped, its name and its metadata, not a blob's address.

    Without an id it is the prefix of all tables of that name, in any case, and without a name that of all tables.
    """
    prefix = f"/dropped/{encoded(account_id)}/{encoded(namespace_id)}/"
    return prefix + (f"{encoded(name.casefold())}/{encoded(table_id) if table_id else ''}" if name else "")


def usage(account_id: str, table_id: str, day: str = "") -> str:
    """Holds, until it expires, how a table was used on a day, not a blob's address; without a day, the prefix of all."""
    return f"/usage/{encoded(account_id)}/{encoded(table_id)}/{day}"


def metrics_report(account_id: str, table_id: str, number: str = "") -> str:
    """Holds, until it expires, a metrics report on a table, not a blob's address; without a number, the prefix of all."""
    return f"/reports/{encoded(account_id)}/{encoded(table_id)}/{number}"


def finished_query(account_id: str, position: str = "") -> str:
    """Holds, until it expires, a query that has ended, not a blob's address; without a position, the prefix of all, the newest first."""
    return f"/query-history/{encoded(account_id)}/{position}"


def scan_plan(account_id: str, table_id: str, caller: str, plan_id: str = "") -> str:
    """Holds, until it expires, a scan that was planned for a caller, not a blob's address; without an id, the prefix of all."""
    return f"/plans/{encoded(account_id)}/{encoded(table_id)}/{encoded(caller) if caller else '-'}/{encoded(plan_id) if plan_id else ''}"


# --- connectors and jobs ----------------------------------------------------------------------------------------------


def secret(account_id: str, owner_id: str, secret_id: str = "") -> str:
    """The marker that a secret of a connector or webhook may exist. It holds when it was set, not a blob's address."""
    return f"{SECRETS}{encoded(account_id)}/{encoded(owner_id)}/{encoded(secret_id)}"


def secret_ids(key: str) -> tuple[str, str, str]:
    """The ids of account, owner and secret in the key of a secret's marker."""
    account_id, owner_id, secret_id = map(unquote, key.removeprefix(SECRETS).split("/"))
    return account_id, owner_id, secret_id


def scheduled_ids(prefix: str, key: str) -> tuple[str, str]:
    """The ids of account and resource in a key of a schedule, which starts with `prefix`."""
    account_id, own_id = map(unquote, key.removeprefix(prefix).split("/"))
    return account_id, own_id


def job(account_id: str, job_id: str = "") -> str:
    return f"{jobs_below(of_account(account_id))}{encoded(job_id)}"


def jobs_below(prefix: str) -> str:
    """The prefix of the jobs of an account, given the prefix of its keys."""
    return f"{prefix}jobs/by-id/"


def job_active(account_id: str, digest: str) -> str:
    """Reserved by the job that does this work until the job finishes."""
    return f"{of_account(account_id)}jobs/active/{digest}"


def job_listing(
    account_id: str, *, connector_id: str = "", state: int = 0, created_micros: int | None = None, job_id: str = ""
) -> str:
    """Jobs from new to old: of one connector or all, in one state or any. Without a time, the prefix of such keys."""
    whose = f"of-connector/{encoded(connector_id)}" if connector_id else "all"
    prefix = f"{of_account(account_id)}jobs/{whose}/{state or 'any'}/"
    return prefix if created_micros is None else f"{prefix}{MAX - created_micros:019d}-{encoded(job_id)}"


def job_ready(due_micros: int | None = None, account_id: str = "", job_id: str = "") -> str:
    """Queued jobs of all accounts, by the time they are due."""
    return _in_queue("ready", due_micros, account_id, job_id)


def job_leased(until_micros: int | None = None, account_id: str = "", job_id: str = "") -> str:
    """Running jobs of all accounts, by the time their leases expire."""
    return _in_queue("leased", until_micros, account_id, job_id)


def queue_time(key: str) -> int:
    """When the job or transaction at a key of the queue is due, or its lease expires, in microseconds since 1970."""
    return int(key.split("/")[3])


def _in_queue(place: str, micros: int | None, account_id: str, job_id: str) -> str:
    prefix = f"{QUEUE}{place}/"
    return prefix if micros is None else f"{prefix}{micros:019d}/{encoded(account_id)}/{encoded(job_id)}"


# --- queries and requests ---------------------------------------------------------------------------------------------


def lease(account_id: str, query_id: str) -> str:
    """Clients may choose query ids, so the key contains a digest of the id."""
    return f"{of_account(account_id)}leases/by-id/{_digest(query_id)}"


def lease_active(account_id: str, query_id: str | None = None) -> str:
    """Reserved by a query that has neither ended nor expired."""
    return f"{of_account(account_id)}leases/active/{'' if query_id is None else _digest(query_id)}"


def pin(uri: str, query_id: str | None = None) -> str:
    """Marks that a query reads the blob at `uri`."""
    return f"/pins/{uri}/{'' if query_id is None else _digest(query_id)}"


def transaction(account_id: str, transaction_id: str) -> str:
    """Ids may be long, so the key contains a digest of the id."""
    return f"{of_account(account_id)}transactions/by-id/{_digest(transaction_id)}"


def transaction_open(account_id: str, owner: str | None = None, transaction_id: str | None = None) -> str:
    """Open transactions, by the caller who began them."""
    prefix = f"{of_account(account_id)}transactions/open/"
    if owner is None:
        return prefix
    return f"{prefix}{_digest(owner)}/{'' if transaction_id is None else _digest(transaction_id)}"


def transaction_due(due_micros: int | None = None, account_id: str = "", transaction_id: str = "") -> str:
    """Transactions of all accounts, by the time when they expire or their records are deleted."""
    return _in_queue("transactions", due_micros, account_id, _digest(transaction_id))


def idempotency(account_id: str, operation: str, key: str) -> str:
    """Clients choose idempotency keys of any length, so the key contains a digest."""
    scope = of_account(account_id) if account_id else "/platform/"
    return f"{scope}idempotency/{encoded(operation)}/{_digest(key)}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


# --- what was current, and what transactions have written -------------------------------------------------------------


def replaced_snapshot(account_id: str, table_id: str, version: int | None = None, unique: str = "") -> str:
    """Holds which snapshot of a table was current until when, not a blob's address. From new to old: the version counts down."""
    prefix = f"/history/{encoded(account_id)}/{encoded(table_id)}/"
    return prefix if version is None else f"{prefix}{MAX - version:019d}-{unique}"


def written_snapshot(account_id: str, transaction_id: str, table_id: str) -> str:
    """Holds the snapshot of a table that a transaction has written last, not a blob's address."""
    return f"/written/{encoded(account_id)}/{_digest(transaction_id)}/{encoded(table_id)}"


# --- events -----------------------------------------------------------------------------------------------------------


def event_pending(account_id: str | None = None, entry: str = "") -> str:
    """Holds an event that has no sequence number yet, not a blob's address."""
    return "/events/pending/" if account_id is None else f"/events/pending/{encoded(account_id)}/{entry}"


def event_account(key: str) -> str:
    """The account in the key of an event without a sequence number."""
    return unquote(key.split("/")[3])


def event(account_id: str, sequence: int | None = None) -> str:
    """Holds an event, not a blob's address."""
    return f"/events/feed/{encoded(account_id)}/{'' if sequence is None else f'{sequence:019d}'}"


def event_head(account_id: str) -> str:
    """Holds the sequence number of the last event, not a blob's address."""
    return f"/events/head/{encoded(account_id)}"


# --- webhooks ---------------------------------------------------------------------------------------------------------


def webhook_delivery(account_id: str, webhook_id: str, part: str) -> str:
    """Holds how far the delivery of a webhook is, who delivers, or a dead letter, not a blob's address."""
    return f"{webhooks_of(account_id)}{encoded(webhook_id)}/{part}"


def webhooks_of(account_id: str) -> str:
    """The beginning of the keys of `webhook_delivery` in an account."""
    return f"{WEBHOOKS}{encoded(account_id)}/"


def webhook_account(key: str) -> str:
    """The account in a key of `webhook_delivery`."""
    return unquote(key.removeprefix(WEBHOOKS).partition("/")[0])


# --- the platform -----------------------------------------------------------------------------------------------------


def seed(name: str) -> str:
    """Holds when the store was seeded with `name`, not a blob's address."""
    return f"/platform/seeds/{name}"


def gc_turn(sweep: str) -> str:
    """Holds the state of a garbage collection sweep, which all servers of the store share, not a blob's address."""
    return f"/platform/gc/{sweep}"
