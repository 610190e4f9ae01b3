"""Garbage collection: deletes unreachable data in slices, while others write.

Every slice processes one page and returns where the next one starts. So a sweep goes through the whole store in small
steps, and no account waits for more than one round. A slice reads first and deletes then: an error while reading
deletes nothing. A dry run reports what would be deleted.

Nothing that is reachable is ever deleted: a blob only if it was old before its pointer was read, no pointer names it,
and after that no query has pinned it; a pointer only at the version that was found stale. Resources whose blob is
missing are reported, not deleted: a store that is unreachable for a moment looks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from skiway.errors import Conflict, SkiwayError
from skiway.metastore.events import sequence_pending
from skiway.metastore.jobs.queue import FINISHED
from skiway.metastore.queries.pins import is_pinned
from skiway.metastore.records import keys
from skiway.metastore.records.branches import holds_blob
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.repository import Repository
from skiway.metastore.records.secrets import marked_at, removed_if_unused
from skiway.security import SecretsStore
from skiway.storage import ABSENT, BlobHead, Check, Clock, Delete, Operation, Pointer, Stores

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of one step: how much it read, what it deleted or would delete, what is damaged, and where to
    continue. `sizes` are those of deleted files of tables. `files` were deleted with what is in `removed`; `unnamed` is the
    number of deleted records without a known name. `failed` are records that could not be processed, with the reasons.
    """

    looked_at: int = 0
    removed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    next_token: str | None = None
    sizes: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    unnamed: int = 0
    failed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of deleted objects."""
        return len(self.removed) + len(self.files) + self.unnamed

    def followed_by(self, other: Slice) -> Slice:
        """Both steps as one."""
        return Slice(
            self.looked_at + other.looked_at,
            (*self.removed, *other.removed),
            (*self.damaged, *other.damaged),
            other.next_token,
            (*self.sizes, *other.sizes),
            (*self.files, *other.files),
            self.unnamed + other.unnamed,
            (*self.failed, *other.failed),
        )


@contextmanager
def noting_failure(key: str, failed: list[str]) -> Iterator[None]:
    """Add the error of one record to `failed`, so that the sweep continues with the next one."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - reported with the result of the sweep
        failed.append(f"{key}: {error.message if isinstance(error, SkiwayError) else repr(error)}")


def sweep_expired(stores: Stores, *, limit: int = 2000) -> int:
    """Delete expired pointers, which are invisible already, and return how many.

    Their blobs are deleted by `sweep_blobs`.
    """
    return stores.pointers.purge_expired(limit=limit)


def sweep_blobs(
    stores: Stores,
    *,
    clock: Clock,
    min_age_s: float = 30.0,
    size: int = 500,
    token: str | None = None,
    dry_run: bool = False,
    pinned: Callable[[str], bool] = lambda _: False,
) -> Slice:
    """Delete blobs that no resource names and that are old enough, except for those that a query has pinned.

    `pinned` may name further blobs to keep. `min_age_s` must be longer than any writer takes from its blob to its
    pointers, plus the 10 s in which `put` does not write an existing blob again.
    """
    oldest = clock() - timedelta(seconds=min_age_s)
    page = stores.blobs.page("", size=size, token=token)
    unused = [head.uri for head in page.items if _old(head, oldest) and _unused(stores, head.uri)]
    # Pins are checked after use, never before: a reader that pins a blob checks afterwards that it was still in use.
    removed = [uri for uri in unused if not pinned(uri) and not is_pinned(stores, uri)]
    if not dry_run:
        removed = [uri for uri in removed if _delete_blob(stores, uri, oldest)]
    return Slice(len(page.items), tuple(removed), next_token=page.next_token)


def sweep_pointers(
    stores: Stores,
    *,
    size: int = 500,
    token: str | None = None,
    dry_run: bool = False,
) -> Slice:
    """Delete names without a resource, and the snapshots and statistics of deleted tables."""
    page = stores.pointers.page("/", size=size, token=token)
    removed: list[str] = []
    damaged: list[str] = []
    for pointer in page.items:
        if keys.is_plain(pointer.key):
            continue
        if keys.owner(pointer) == pointer.key and stores.blobs.head(pointer.blob_uri) is None:
            if stores.pointers.get(pointer.key) == pointer:
                damaged.append(pointer.key)
            continue
        batch = tuple(_stale(stores, pointer))
        if batch and (dry_run or _applied(stores, batch)):
            removed.append(pointer.key)
    return Slice(len(page.items), tuple(removed), tuple(damaged), page.next_token)


def sweep_jobs(
    stores: Stores,
    *,
    clock: Clock,
    retention_s: float = WEEK_S,
    size: int = 200,
    accounts: int = 50,
    token: str | None = None,
    dry_run: bool = False,
) -> Slice:
    """Delete jobs that finished long ago, one account after another. A slice ends after a limited number of accounts."""
    before = (clock() - timedelta(seconds=retention_s)).timestamp()
    account, _, within = (token or "").partition(" ")
    looked_at = 0
    removed: list[str] = []
    failed: list[str] = []
    for _ in range(accounts):
        account = account if within else _next_account(stores, account)
        if not account:
            return Slice(looked_at, tuple(removed), failed=tuple(failed))
        page = stores.pointers.page(keys.jobs_below(account), size=size, token=within or None)
        for pointer in page.items:
            with noting_failure(pointer.key, failed):
                batch = tuple(_finished(stores, pointer, before))
                if batch and (dry_run or _applied(stores, batch)):
                    removed.append(pointer.key)
        looked_at, within = looked_at + len(page.items), page.next_token or ""
        if looked_at >= size:
            break
    return Slice(looked_at, tuple(removed), next_token=f"{account} {within}", failed=tuple(failed))


def _next_account(stores: Stores, account: str) -> str:
    """The key prefix of the next account, even of a deleted one; empty after the last."""
    behind = stores.pointers.token_after(keys.ACCOUNTS, f"{account}\U0010ffff") if account else None
    found = stores.pointers.page(keys.ACCOUNTS, size=1, token=behind).items
    return keys.account_prefix(found[0].key) if found else ""


def sweep_secrets(
    stores: Stores,
    secrets: SecretsStore,
    *,
    clock: Clock,
    min_age_s: float = 900.0,
    size: int = 500,
    token: str | None = None,
    dry_run: bool = False,
) -> Slice:
    """Delete secrets that no connector and no webhook has, left by processes that died while they changed some."""
    oldest = clock() - timedelta(seconds=min_age_s)
    page = stores.pointers.page(keys.SECRETS, size=size, token=token)
    removed: list[str] = []
    failed: list[str] = []
    for marker in page.items:
        with noting_failure(marker.key, failed):
            if marked_at(marker) < oldest and removed_if_unused(stores, secrets, marker, dry_run=dry_run):
                removed.append(marker.key)
    return Slice(len(page.items), tuple(removed), next_token=page.next_token, failed=tuple(failed))


def sweep_events(stores: Stores, *, size: int = 500, token: str | None = None, dry_run: bool = False) -> Slice:
    """Number the events that have no number yet, so that readers find them in order. Events expire by themselves."""
    page = stores.pointers.page(keys.event_pending(), size=size, token=token)
    if not dry_run:
        for account_id in sorted({keys.event_account(pointer.key) for pointer in page.items}):
            sequence_pending(stores.pointers, account_id)
    return Slice(len(page.items), next_token=page.next_token)


def _old(head: BlobHead, oldest: datetime) -> bool:
    return head.modified_at < oldest


def _unused(stores: Stores, uri: str) -> bool:
    """Whether the blob belongs to a resource that names another blob, or is gone."""
    key = keys.of_blob(uri)
    if key is None:
        return False
    pointer = stores.pointers.get(key)
    # Branches are asked after main: one that is created reads main after it exists.
    return (pointer is None or pointer.blob_uri != uri) and not holds_blob(stores, uri)


def _delete_blob(stores: Stores, uri: str, oldest: datetime) -> bool:
    """Delete a blob unless it was written again by a server that is about to refer to it."""
    head = stores.blobs.head(uri)
    if head is None or not _old(head, oldest):
        return False
    stores.blobs.delete(uri)
    return True


def _stale(stores: Stores, pointer: Pointer) -> Iterator[Operation]:
    """The operations that delete a stale pointer.

    All pointers of a resource move together, so a name that is unchanged after its resource was read without it is
    stale.
    """
    table = keys.table_of(pointer.key)
    if table is not None and stores.pointers.get(table) is None:
        yield Check(table, expect=ABSENT)
        yield Delete(pointer.key, expect=pointer.version)
        return
    owner = keys.owner(pointer)
    if owner == pointer.key or keys.is_current(pointer.key):
        return
    resource = stores.pointers.get(owner)
    if resource is not None and resource.blob_uri == pointer.blob_uri:
        return
    if stores.pointers.get(pointer.key) == pointer:
        yield Delete(pointer.key, expect=pointer.version)


def _finished(stores: Stores, pointer: Pointer, before: float) -> Iterator[Operation]:
    job = Repository(stores, JOB).follow(pointer)
    if job and job.value.state in FINISHED and job.value.finished_at.ToSeconds() < before:
        named = filter(None, map(stores.pointers.get, JOB.names(job.value)))
        own = (each for each in named if each.blob_uri == job.pointer.blob_uri)
        log = filter(None, [stores.pointers.get(keys.job_log(job.value.account_id, job.value.job_id))])
        yield from (Delete(each.key, expect=each.version) for each in (job.pointer, *own, *log))


def _applied(stores: Stores, batch: tuple[Operation, ...]) -> bool:
    try:
        stores.pointers.apply(batch)
    except Conflict:
        return False
    return True
