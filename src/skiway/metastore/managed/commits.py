"""Commits to managed tables, and the turns of REST clients that lose races."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Condition
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from skiway.errors import Busy, Conflict, Contention, InvalidArgument, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.changes.commits import Change, Producer, plain
from skiway.formats.iceberg.metadata import metadata_json, updated, version_of, write_metadata
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.foundation.files import synced_together
from skiway.metastore.managed import locations
from skiway.metastore.managed.states import (
    Also,
    ManagedTable,
    NewState,
    NewTable,
    at_home,
    is_certainly_undone,
    load,
    nothing_else,
    publish,
    undoing,
)
from skiway.metastore.managed.tables import TableCreation, forget_staged, staged_table
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import folded, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain, set_plain
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import writable_id
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

CLIENT_RETRY_S: Final = 2.0
"""How long statements wait for a client that lost a race: its own pause, loading the table, writing manifests."""
MAX_WAIT_S: Final = 5.0
"""How long a statement waits at most, however many clients are expected."""
TURN_S: Final = 3.0
"""How long other clients wait while a client has its turn."""
MAX_HELD_S: Final = 15.0
"""How long a request of a client is held at most. Clients wait at least a minute for a response."""
_KNOWN_S: Final = 60.0  # how long the losses of a client are counted
_POLL_S: Final = 0.02  # of statements
_OTHERS_S: Final = 0.05  # until changes of the line by other servers are noticed

Sleep = Callable[[float], None]
Hold = Callable[[], AbstractContextManager[bool]]


class _Lost(msgspec.Struct, frozen=True):
    """A client that has lost. It is in the line if it has a place, and its turn has begun if it `is_called`."""

    until: float
    """Other commits wait for the client until this time, in seconds since 1970."""
    place: float | None = None
    is_called: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    """The clients that have lost races for one table. A client without a snapshot has the id 0."""

    realm: Realm
    table_id: str

    def get(self, client: int) -> _Lost | None:
        pointer = self.realm.stores.pointers.get(self._key(client))
        return None if pointer is None else msgspec.json.decode(pointer.blob_uri, type=_Lost)

    def put(self, client: int, lost: _Lost) -> None:
        expires_at = datetime.fromtimestamp(lost.until + _KNOWN_S, UTC)
        set_plain(self.realm.stores, self._key(client), msgspec.json.encode(lost).decode(), expires_at=expires_at)

    def remove(self, client: int) -> None:
        delete_plain(self.realm.stores, self._key(client))

    def first(self) -> int | None:
        """The client that has its turn, or else the first client in the line; None if the line is empty."""
        waiting = [
            (not lost.is_called, lost.place, client) for client, lost in self._expected() if lost.place is not None
        ]
        return min(waiting)[-1] if waiting else None

    def is_expecting(self) -> bool:
        """Whether any client is expected to retry."""
        return any(True for _ in self._expected())

    @property
    def now(self) -> float:
        return self.realm.clock().timestamp()

    def _expected(self) -> Iterator[tuple[int, _Lost]]:
        now, prefix = self.now, self._prefix
        for pointer in self.realm.stores.pointers.scan(prefix):
            lost = msgspec.json.decode(pointer.blob_uri, type=_Lost)
            if lost.until > now:
                yield int(pointer.key.removeprefix(prefix)), lost

    @property
    def _prefix(self) -> str:
        return keys.expected_clients(self.realm.account_id, self.table_id)

    def _key(self, client: int) -> str:
        return f"{self._prefix}{client}"


class ClientTurns:
    """Lets the clients of one server take turns, and those of other servers too.

    Requests are held in a block of `hold`, which yields False if too many of them wait already. Without it none is held.
    """

    def __init__(self, hold: Hold = lambda: nullcontext(False)) -> None:
        self._hold = hold
        self._changed = Condition()

    @contextmanager
    def taken(self, realm: Realm, table_id: str, snapshot_id: int | None) -> Iterator[None]:
        """A block in which a client commits. It begins when no other client is before it; if it fails, it is held."""
        line, client = _Line(realm, table_id), snapshot_id or 0
        if client:
            self._queue(line, client)
        try:
            yield
        except Conflict:
            with suppress(SkiwayError):  # the caller needs to know about the conflict
                self._lost(line, client)
            raise
        except BaseException:
            self._done(line, client)
            raise
        self._done(line, client)

    def _lost(self, line: _Line, client: int) -> None:
        before = line.get(client)
        if before is not None and before.is_called:  # not even in its turn: let the others go on
            self._leave(line, client)
        elif client and before is not None:
            self._queue(line, client)
            line.put(client, _Lost(line.now + TURN_S, before.place or line.now, is_called=True))
        else:
            line.put(client, _Lost(line.now + CLIENT_RETRY_S))

    def _queue(self, line: _Line, client: int) -> None:
        """Join the line unless it is empty, and wait until the client is first."""
        if line.first() in (None, client):
            return
        with self._hold() as is_held:
            if is_held:
                line.put(client, _Lost(line.now + MAX_HELD_S + TURN_S, line.now))
                until = time.monotonic() + MAX_HELD_S
                while line.first() not in (None, client) and time.monotonic() < until:
                    with self._changed:
                        self._changed.wait(_OTHERS_S)

    def _done(self, line: _Line, client: int) -> None:
        """Let the next client go on. A failure of the store does not change the outcome of the commit."""
        with suppress(SkiwayError):
            if client and line.get(client) is not None:
                self._leave(line, client)

    def _leave(self, line: _Line, client: int) -> None:
        line.remove(client)
        with self._changed:
            self._changed.notify_all()


def wait_for_clients(
    realm: Realm, table_id: str, *, sleep: Sleep = time.sleep, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Wait while remote clients that lost a race are expected to retry."""
    until, line = monotonic() + MAX_WAIT_S, _Line(realm, table_id)
    while monotonic() < until and line.is_expecting():
        sleep(_POLL_S)


ATTEMPTS: Final = 40
PAUSES: Final = wait_random_exponential(multiplier=0.005, max=0.5)
"""The times between attempts that lose races."""

LOCK_TIMEOUT_S: Final = 10.0
"""After this time a commit proceeds without the lock: its holder may be waiting for a store that hangs."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table. `producer` makes it for the table's current state, and again after a lost race.

    `snapshot_id` is the snapshot that a client adds, by which its retries are recognized.
    """

    table_id: v1.ResourceId
    producer: Producer
    snapshot_id: int | None = None

    @classmethod
    def of_client(
        cls, table_id: v1.ResourceId, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]
    ) -> TableChange:
        """The updates of a client, which are made if the requirements hold."""
        added = [update.snapshot.snapshot_id for update in updates if update.action == "add-snapshot"]
        return cls(table_id, plain(requirements, updates), added[-1] if added else None)


def commit(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    *,
    turns: ClientTurns | None = None,
) -> ManagedTable:
    """Apply the updates of a REST client. Raise `Conflict` (`commit.failed`) if a requirement does not hold.

    The client then has to make the updates again. Statements that run here wait for it for a short time, and with `turns`
    other clients do so too.
    """
    (made,) = commit_all(realm, warehouse, [TableChange.of_client(table_id, requirements, updates)], turns=turns)
    return made


def commit_all(
    realm: Realm,
    warehouse: Warehouse,
    changes: Sequence[TableChange],
    *,
    creations: Sequence[TableCreation] = (),
    turns: ClientTurns | None = None,
) -> list[ManagedTable]:
    """Apply the updates of a REST client to several tables, some of which may be new: all or none, like `commit` to one.

    Raise `AlreadyExists` if the name of a new table is taken.
    """
    _check_distinct(changes, creations)
    turns = turns or ClientTurns()
    with ExitStack() as waiting:
        for each in changes:
            waiting.enter_context(turns.taken(realm, each.table_id.id, each.snapshot_id))
        return _change(realm, warehouse, changes, creations)


def change(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, producer: Producer, *, sleep: Sleep = time.sleep
) -> ManagedTable:
    """Commit the change that `producer` makes. After a lost race it is called again for the new state, up to a limit."""
    (made,) = change_all(realm, warehouse, [TableChange(table_id, producer)], sleep=sleep)
    return made


def change_all(
    realm: Realm,
    warehouse: Warehouse,
    changes: Sequence[TableChange],
    *,
    new: Sequence[NewTable] = (),
    also: Also = nothing_else,
    sleep: Sleep = time.sleep,
) -> list[ManagedTable]:
    """Commit the changes of several tables with one compare-and-set: all of them, or none. `new` are tables that are created with them.

    `also` returns further operations for the same batch. After a lost race all changes are made again for the new states of
    their tables, up to a limit.
    """
    _check_distinct(changes)
    for each in changes:
        wait_for_clients(realm, each.table_id.id)

    def forget() -> None:
        for each in new:
            forget_staged(realm, each)

    with undoing(forget):
        return _change(realm, warehouse, changes, new=new, also=also, sleep=sleep)


def _check_distinct(changes: Sequence[TableChange], creations: Sequence[TableCreation] = ()) -> None:
    ids = [each.table_id.id for each in changes]
    ids += [f"{creation.namespace_id.id}/{folded(normal_text(creation.name))}" for creation in creations]
    for table_id, count in Counter(ids).items():
        if count > 1:
            raise failure(InvalidArgument, "commit.table.repeated", id=table_id.rpartition("/")[2], field="table_id")


def _change(
    realm: Realm,
    warehouse: Warehouse,
    changes: Sequence[TableChange],
    creations: Sequence[TableCreation] = (),
    *,
    new: Sequence[NewTable] = (),
    also: Also = nothing_else,
    sleep: Sleep = time.sleep,
) -> list[ManagedTable]:
    for each in changes:
        writable_id(realm, each.table_id, v1.RK_TABLE, field="table_id")
    # Sorted, so that two commits to the same tables never wait for each other.
    folders = sorted({locations.folder_of(realm, warehouse, each.table_id.id) for each in changes})

    def attempt() -> list[ManagedTable]:
        with ExitStack() as locks:
            for folder in folders:
                locks.enter_context(warehouse.lock(folder, timeout_s=LOCK_TIMEOUT_S))
            return _committed(realm, warehouse, changes, creations, new, also)

    def give_up(state: RetryCallState) -> NoReturn:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, _LostRace)
        for new in error.staged:
            forget_staged(realm, new)
        raise _too_many_races(error.tables) from error

    return Retrying(
        retry=retry_if_exception_type(_LostRace),
        stop=stop_after_attempt(ATTEMPTS),
        wait=PAUSES,
        sleep=sleep,
        retry_error_callback=give_up,
    )(attempt)


class _LostRace(Exception):
    """Another commit was faster. `staged` are the tables that this one would have created."""

    def __init__(self, tables: Sequence[ManagedTable], staged: Sequence[NewTable]) -> None:
        super().__init__()
        self.tables, self.staged = tables, staged


def _too_many_races(tables: Sequence[ManagedTable]) -> Conflict:
    names = ", ".join(table.table.display_name for table in tables) or "to be created"
    return Conflict(
        f"table {names} was changed by others during all {ATTEMPTS} attempts to commit: try again",
        key="commit.failed",
        id=tables[0].id if tables else "",
        reason="too many concurrent commits",
    )


def _committed(
    realm: Realm,
    warehouse: Warehouse,
    changes: Sequence[TableChange],
    creations: Sequence[TableCreation],
    more: Sequence[NewTable],
    also: Also,
) -> list[ManagedTable]:
    """Make all changes for the current states of their tables, and publish the results. Tables without changes stay."""
    bases: list[ManagedTable] = []
    written: list[tuple[TableFiles, list[str]]] = []
    states: dict[str, NewState | NewTable] = {each.table.resource_id.id: each for each in more}
    staged: list[NewTable] = []
    claimed: list[str] = []
    try:
        with synced_together():
            for each in changes:
                base = load(realm, warehouse, each.table_id)
                bases.append(base)
                made = each.producer(base.metadata, base.files, realm.clock)
                own = list(made.written)
                written.append((base.files, own))
                if made.moves_from(base.metadata.location):
                    base, made = _moved(realm, warehouse, base, made, claimed)
                    written[-1] = (base.files, own)
                if (state := _new_state(realm, base, made, own)) is not None:
                    states[base.id] = state
            for creation in creations:
                new = staged_table(realm, warehouse, creation)
                staged.append(new)
                states[new.table.resource_id.id] = new
            published = publish(realm, list(states.values()), also=also) if states else []
    except SkiwayError as error:
        is_lost = (isinstance(error, Contention) and not isinstance(error, Busy)) or error.key == "version.mismatch"
        if is_certainly_undone(error):
            for files, own in written:
                files.remove(own)
            for folder in claimed:
                locations.release_place(realm.stores, folder)
            for new in staged:
                new.files.remove([new.location])
                if not is_lost:  # else it is created again
                    forget_staged(realm, new)
        if is_lost:
            raise _LostRace(bases, staged) from error
        raise
    by_id = {each.id: each for each in published}
    created = [by_id[each.table.resource_id.id] for each in (*staged, *more)]
    return [*(by_id.get(base.id, base) for base in bases), *created]


def _new_state(realm: Realm, base: ManagedTable, made: Change, written: list[str]) -> NewState | None:
    """The state after a change, whose metadata is written and added to `written`; None if nothing changes."""
    folder = next(
        (update.location for update in made.updates if update.action == "set-location"), base.metadata.location
    )
    locations.check_updates(made.updates, base.files, folder)
    _check_identity(base.metadata, made.updates)
    metadata = updated(base.metadata, made.requirements, made.updates, location=base.metadata_location)
    if metadata is base.metadata:
        return None
    if (branch := branch_of(realm.stores)) is not None:
        metadata = at_home(metadata, base.files)
        kept = {each.snapshot_id for each in metadata.snapshots}
        if any(each.snapshot_id not in kept for each in base.metadata.snapshots):
            raise failure(PreconditionFailed, "branch.expired", name=branch.branch.display_name)
    text = metadata_json(metadata)
    version = version_of(base.metadata_location) + 1
    location = write_metadata(base.files, metadata, version=version, text=text, sealed=False)
    written.insert(0, location)  # deleted first: it must not exist without the files that it references
    return NewState(base, metadata, location, text, synced=bool(made.written))


def _moved(
    realm: Realm, warehouse: Warehouse, base: ManagedTable, made: Change, claimed: list[str]
) -> tuple[ManagedTable, Change]:
    """The table with the files of the folder to which a change moves it, which is claimed, and the change for it.

    Files of older snapshots stay where they are. The client may have written to the new folder before.
    """
    given = [update for update in made.updates if update.action == "set-location"]
    catalog = hierarchy.catalog(realm, base.table.catalog_id).value
    folder = locations.chosen_folder(realm, warehouse, catalog, given[-1].location)
    if locations.claim_place(realm, warehouse, folder, base.id, empty=False):
        claimed.append(folder)
    others = tuple(update for update in made.updates if update.action != "set-location")
    moved = given[-1].model_copy(update={"location": folder})
    files = locations.table_files(realm, warehouse, base.table, folder)
    return replace(base, files=files), replace(made, updates=(*others, moved))


def _check_identity(base: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    for update in updates:
        if update.action == "assign-uuid" and update.uuid != base.table_uuid:
            raise InvalidArgument(
                f"the table's uuid cannot change from {base.table_uuid} to {update.uuid}", key="update.invalid"
            )
