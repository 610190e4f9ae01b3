"""The journal: adds an event for each changed object to every batch that changes the store.

Events follow from the keys of a batch, so no function of the metastore has to think of them, and none can forget them. They
are part of the batch: there is a change with its events, or neither. An event is a pointer of its own, with a unique key, so
writers of different objects never conflict. `skiway.metastore.events` gives events their order.

The journal also records which snapshot of a table a batch replaces, and when, so that transactions can read several tables as
of one time, by the clocks of the servers (`resources.snapshots.current_at`).

Each pointer of a batch belongs to an object, its root: a table's names, snapshots and statistics all belong to the table. There
is one event per root.
"""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

from google.protobuf.timestamp_pb2 import Timestamp

from skiway.foundation.resources import RESOURCES
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.storage import ABSENT, Check, Clock, Delete, Operation, Pointer, PointerStore, Put, Stores, utc_now
from skiway.telemetry.context import current_call

HISTORY_S: Final = 2 * 3600.0
"""How long replaced snapshots are recorded: longer than a transaction can be open."""

RETENTION_S: Final = 7 * 24 * 3600.0
"""How long events are stored."""

EVENT_KINDS: Final = {
    "account": "accounts",
    "catalog": "catalogs",
    "namespace": "namespaces",
    "table": "tables",
    "view": "views",
    "connector": "connectors",
    "job": "jobs",
    "grant": "grants",
    "branch": "branches",
    **{resource.name: resource.plural for resource in RESOURCES},
}
"""The kinds of objects that have events, and their names in keys."""

_NUMBERS: Final = itertools.count()
_SINGULAR: Final = {plural: kind for kind, plural in EVENT_KINDS.items()}
_BY_ID: Final = frozenset(EVENT_KINDS.values()) - {"accounts", "grants", "branches"}
_BY_NAME: Final = frozenset(("catalogs", "connectors", *(resource.plural for resource in RESOURCES))) - {"rules"}


def journaled(stores: Stores, *, clock: Clock = utc_now, caller: str = "", retention_s: float = RETENTION_S) -> Stores:
    """The same stores, with events of all changes. `caller` makes them."""
    inner, journal = stores.pointers, Journal(clock, caller, retention_s)
    if isinstance(inner, JournaledPointers):
        if inner._journal == journal:
            return stores
        inner = inner.inner
    return Stores(JournaledPointers(inner, journal), stores.blobs)


def added_event(stores: Stores, account_id: str, event: v1.Event) -> Put:
    """The operation that stores an event which does not follow from keys, for the batch that makes the change."""
    journal = stores.pointers._journal if isinstance(stores.pointers, JournaledPointers) else Journal(utc_now)
    return journal.added(account_id, event)


_DOORS: Final = {"Airport": "airport", "FlightSql": "flight sql", "IcebergRest": "rest"}


def _door() -> str:
    """What made the current call, if it says so, or else the protocol; empty outside of calls."""
    call = current_call()
    if call is None:
        return ""
    return call.engine_kind.removesuffix("-pages") or _DOORS.get(call.operation.partition("/")[0], "grpc")


def packed(event: v1.PendingEvent | v1.Event) -> str:
    """An event as the text that a pointer holds."""
    return base64.urlsafe_b64encode(event.SerializeToString(deterministic=True)).decode()


def unpacked(pointer: Pointer) -> bytes:
    """The bytes of the event that a pointer holds."""
    return base64.urlsafe_b64decode(pointer.blob_uri)


# --- from operations to events ----------------------------------------------------------------------------------------


@dataclass
class _Change:
    """What a batch does to one object."""

    account_id: str
    kind: str
    object_id: str
    own: Operation | None = None
    """The operation on the object's canonical key."""
    unchanged: int = 0
    """The version of the object that the batch checks, if it does not change it."""
    current: Operation | None = None
    """The operation on the pointer to a table's current snapshot."""
    added: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    """Fields of the event that follow from names which the object has from now on, or no longer has."""
    has_snapshots: bool = False
    has_statistics: bool = False
    has_tags: bool = False
    has_new_state: bool = False
    new_status: str = ""
    old_status: str = ""
    """The last status of a quality rule, if it changes."""
    is_silent: bool = False

    def action(self) -> str:
        """What happened, or an empty text if it is not worth an event."""
        if self.is_silent:
            return ""
        match self.own:
            case Put(expect=expect) if expect == ABSENT:
                return "created"
            case Delete():
                return "deleted"
        if isinstance(self.current, Put):
            return "committed"
        if self.own is not None:
            if self.kind == "job":
                return "changed" if self.has_new_state else ""
            return "renamed" if self.removed else "changed"
        if self.new_status != self.old_status:
            # A rule that passes when it is first checked did not recover.
            return {"failed": "failed", "passed": "recovered" if self.old_status else ""}.get(self.new_status, "")
        if self.has_snapshots or self.has_tags or self.current is not None:
            return "changed"
        return "profiled" if self.has_statistics else ""

    def order(self) -> tuple[int, int, int]:
        """Sorts the events of an object in the order of their commits."""
        second = 0 if self.current is None else _version_after(self.current)
        if self.own is not None:
            return _version_after(self.own), 0, second
        return self.unchanged, 1, second


def _version_after(operation: Operation) -> int:
    return operation.expect if isinstance(operation, Check) else operation.expect + 1


def _changes(batch: Sequence[Operation]) -> list[_Change]:
    found: dict[tuple[str, ...], _Change] = {}

    def change(account_id: str, kind: str, object_id: str) -> _Change:
        return found.setdefault((account_id, kind, object_id), _Change(account_id, kind, object_id))

    roots: dict[str, _Change] = {}
    named: list[tuple[Operation, str, dict[str, str]]] = []
    closing: set[str] = set()
    for operation in batch:
        match [unquote(part) for part in operation.key.split("/")[1:]]:
            case ["accounts", "by-id", account]:
                _own(change(account, "account", account), operation, roots)
            case ["accounts", account, plural, "by-id", object_id] if plural in _BY_ID:
                _own(change(account, _SINGULAR[plural], object_id), operation, roots)
            case ["accounts", account, "grants", "by-object", object_id, grantee]:
                granted = change(account, "grant", f"{object_id}/{grantee}")
                granted.added = {"detail": grantee}
                _own(granted, operation, roots)
            case ["accounts", account, "column-tags", "by-table", table] if not isinstance(operation, Check):
                change(account, "table", table).has_tags = True
            case ["accounts", account, "rule-results", "by-status", status, table, rule, name]:
                _of_rule(change(account, "rule", rule), operation, status, {"name": name, "table_id": table})
            case ["accounts", account, "tables", table, "snapshots", *rest]:
                _of_table(change(account, "table", table), operation, rest)
            case ["closing", *_]:
                closing.add(operation.key)
            case parts:
                named += ((operation, kind, fields) for kind, fields in _name(parts))
    for operation, kind, fields in named:
        _add_name(list(found.values()), roots, operation, kind, fields)
    for each in found.values():
        if each.own is not None and keys.closing(each.own.key) in closing and not isinstance(each.own, Delete):
            # Closing an object moves its pointer, but changes nothing. A move closes and changes it in two batches.
            each.is_silent = each.is_silent or any(
                isinstance(operation, Put) and operation.key == keys.closing(each.own.key) for operation in batch
            )
    return list(found.values())


def _own(change: _Change, operation: Operation, roots: dict[str, _Change]) -> None:
    if isinstance(operation, Check):
        change.unchanged = operation.expect
        # What belongs to a deleted object is deleted without events.
        change.is_silent = operation.expect == ABSENT
        return
    change.own = operation
    if isinstance(operation, Put):
        roots[operation.blob_uri] = change


def _of_table(change: _Change, operation: Operation, rest: list[str]) -> None:
    if isinstance(operation, Check):
        return
    match rest:
        case ["current"]:
            change.current = operation
        case ["by-id", _]:
            change.has_snapshots = True
        case [_, "stats", _]:
            change.has_statistics = True


def _of_rule(change: _Change, operation: Operation, status: str, fields: dict[str, str]) -> None:
    """Results move to another key if the status changes, or if the rule was renamed."""
    if isinstance(operation, Delete):
        change.old_status = status
    elif isinstance(operation, Put) and operation.expect == ABSENT:
        change.new_status = status
        change.added |= fields


def _name(parts: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The kind of object that a key is a name of, and the fields of an event that follow from it."""
    match parts:
        case ["accounts", "by-name", name]:
            yield "account", {"name": name}
        case ["accounts", _, plural, "by-name", name] if plural in _BY_NAME:
            yield _SINGULAR[plural], {"name": name}
        case ["accounts", _, "rules", "by-table", table, name]:
            yield "rule", {"name": name, "table_id": table}
        case ["accounts", _, "catalogs", catalog, "namespaces", "by-path", *path]:
            yield "namespace", {"name": ".".join(path), "catalog_id": catalog}
        case ["accounts", _, "namespaces", namespace, "tables" | "views" as plural, "by-name", name]:
            yield _SINGULAR[plural], {"name": name, "namespace_id": namespace}
        case ["accounts", _, "jobs", "all", state, _] if state.isdecimal():
            yield "job", {"detail": v1.JobState.Name(v1.JobState.ValueType(int(state))).removeprefix("JS_").lower()}


def _add_name(
    changes: list[_Change], roots: dict[str, _Change], operation: Operation, kind: str, fields: dict[str, str]
) -> None:
    """Add a name to the change that it belongs to: the one with the same blob, or the only one of the kind."""
    if isinstance(operation, Check):
        return
    same_kind = [each for each in changes if each.kind == kind and each.own is not None]
    change = roots.get(operation.blob_uri) if isinstance(operation, Put) else None
    if change is None and len(same_kind) == 1:
        (change,) = same_kind
    if change is None or change.kind != kind:
        return
    if isinstance(operation, Put):
        change.added |= fields
        change.has_new_state = change.has_new_state or operation.expect == ABSENT
    else:
        change.removed |= fields


@dataclass(frozen=True, slots=True)
class Journal:
    """Makes the events of changes by one caller."""

    clock: Clock
    caller: str = ""
    retention_s: float = RETENTION_S
    random: Callable[[], str] = lambda: secrets.token_hex(8)

    def entries(self, batch: Sequence[Operation]) -> list[Put]:
        """The operations that store the events of a batch."""
        changes = [(each, action) for each in _changes(batch) if (action := each.action())]
        if not changes:
            return []
        changes.sort(key=lambda each: each[0].added.get("name", ""))  # a namespace before what is in it
        now = self.clock()
        change_id = self._change_id(now)
        return [self._entry(change, action, now, f"{change_id}-{n:04d}") for n, (change, action) in enumerate(changes)]

    def added(self, account_id: str, event: v1.Event) -> Put:
        """The operation that stores an event."""
        now = self.clock()
        change_id = self._change_id(now)
        event.occurred_at.FromDatetime(now)
        event.caller, event.change_id, event.door = self.caller, change_id, _door()
        return self._put(account_id, f"{change_id}-0000", v1.PendingEvent(event=event), now)

    def replaced(self, batch: Sequence[Operation], get: Callable[[str], Pointer | None]) -> list[Put]:
        """The operations that record which snapshots are replaced by a batch, and when. `get` reads a pointer."""
        moved = [each for each in batch if keys.is_current(each.key) and not isinstance(each, Check)]
        gone = {each.key for each in batch if isinstance(each, Check) and each.expect == ABSENT}
        return [self._replaced(each, get) for each in moved if keys.table_of(each.key) not in gone]

    def _replaced(self, operation: Operation, get: Callable[[str], Pointer | None]) -> Put:
        _, _, account, _, table, *_ = map(unquote, operation.key.split("/"))
        before = get(operation.key) if operation.expect != ABSENT else None
        now = self.clock()
        # If the pointer has another version than expected, the whole batch will be rejected.
        value = f"{int(now.timestamp() * 1_000_000)}:{before.blob_uri if before else ''}"
        key = keys.replaced_snapshot(account, table, operation.expect, self.random())
        return Put(key, value, expect=ABSENT, expires_at=now + timedelta(seconds=HISTORY_S))

    def _entry(self, change: _Change, action: str, now: datetime, entry: str) -> Put:
        occurred_at = Timestamp()
        occurred_at.FromDatetime(now)
        event = v1.Event(
            occurred_at=occurred_at,
            kind=change.kind,
            action=action,
            object_id=change.object_id.partition("/")[0] if change.kind == "grant" else change.object_id,
            caller=self.caller,
            change_id=entry.rpartition("-")[0],
            door=_door(),
        )
        described = change.removed if action == "deleted" and change.kind != "grant" else change.added
        for name, value in described.items():
            setattr(event, name, value)
        if action != "deleted":
            event.previous_name = change.removed.get("name", "")
        if isinstance(change.current, Put):
            event.snapshot_id = int(change.current.blob_uri)
        version, phase, step = change.order()
        pending = v1.PendingEvent(event=event, version=version, phase=phase, step=step)
        return self._put(change.account_id, entry, pending, now)

    def _change_id(self, now: datetime) -> str:
        # Keys sort by time and, within a process, by the order of the changes.
        return f"{int(now.timestamp() * 1_000_000):016x}{next(_NUMBERS) % 2**32:08x}-{self.random()}"

    def _put(self, account_id: str, entry: str, pending: v1.PendingEvent, now: datetime) -> Put:
        expires_at = now + timedelta(seconds=self.retention_s)
        return Put(keys.event_pending(account_id, entry), packed(pending), expect=ABSENT, expires_at=expires_at)


# --- the store --------------------------------------------------------------------------------------------------------


def _of_inner(name: str) -> Any:
    """The method of the inner store."""
    return lambda journaled, *values, **options: getattr(journaled.inner, name)(*values, **options)


class JournaledPointers(PointerStore):
    """A pointer store that adds events to all batches. Everything else goes to the inner store unchanged."""

    def __init__(self, inner: PointerStore, journal: Journal) -> None:
        super().__init__(clock=inner._clock)
        self.inner, self._journal = inner, journal

    @property
    def max_batch(self) -> int:  # type: ignore[override]
        """That of the inner store."""
        return self.inner.max_batch

    @property
    def max_large_batch(self) -> int:  # type: ignore[override]
        """That of the inner store."""
        return self.inner.max_large_batch

    def state(self, *, since: float | None = None) -> Hashable | None:
        """That of the inner store."""
        return self.inner.state(since=since)

    def get(self, key: str) -> Pointer | None:
        """That of the inner store."""
        return self.inner.get(key)

    def _apply(self, batch: Sequence[Operation]) -> None:
        # The time is read last, right before the change takes effect.
        added = [*self._journal.entries(batch), *self._journal.replaced(batch, self.inner._get)]
        if added:
            batch = (*batch, *added)
            self._check_batch(batch, large=True)
        self.inner._apply(batch)

    def _get(self, key: str) -> Pointer | None:
        return self.inner._get(key)

    retire, close = map(_of_inner, ("retire", "close"))
    _reported, _scan, _count, _purge = map(_of_inner, ("_reported", "_scan", "_count", "_purge"))
    _snapshot, _load = map(_of_inner, ("_snapshot", "_load"))
    _format, _change_format = map(_of_inner, ("_format", "_change_format"))
