"""Removes what nobody can reach, in slices, while others write.

Every slice looks at one page and says where the next begins, so a sweep goes round the whole store in small steps,
and no account waits for more than one round. A slice reads first and removes then: an error while reading removes
nothing. A dry run says what would be removed.

Nothing that can be read is ever removed: a blob, only if it was old before its pointer was looked at, no pointer names
it, and then no query has pinned it; a pointer, only at the version that was found stale. Resources whose blob is lost
are reported, not removed: a store that is unreachable for a moment looks the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from skiway.errors import Conflict
from skiway.metastore.connectors.credentials import marked_at, removed_if_unused
from skiway.metastore.jobs.queue import FINISHED
from skiway.metastore.queries.pins import is_pinned
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.repository import Repository
from skiway.security import SecretsStore
from skiway.storage import ABSENT, BlobHead, Check, Clock, Delete, Operation, Pointer, Stores

__all__ = ["Slice", "run", "sweep_blobs", "sweep_expired", "sweep_jobs", "sweep_pointers", "sweep_secrets"]

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Slice:
    """What one step did: how much it looked at, what it removed or would have, what is damaged, and where to go on."""

    looked_at: int = 0
    removed: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    next_token: str | None = None

    def followed_by(self, other: Slice) -> Slice:
        """Both steps as one."""
        return Slice(
            self.looked_at + other.looked_at,
            (*self.removed, *other.removed),
            (*self.damaged, *other.damaged),
            other.next_token,
        )


def run(
    sweep: Callable[[str | None], Slice],
    *,
    seconds: float,
    token: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Slice:
    """Slices of a sweep, one after the other, until its end or until the time is used up; at least one."""
    started, done = monotonic(), sweep(token)
    while done.next_token is not None and monotonic() - started < seconds:
        done = done.followed_by(sweep(done.next_token))
    return done


def sweep_expired(stores: Stores, *, limit: int = 2000) -> int:
    """Free the room of expired keys and markers, which nobody sees any more; how many. Their blobs go with the others."""
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
    """Remove blobs that no resource names and that were written long enough ago, except those a query has pinned.

    `pinned` may name more to be kept.

    `min_age_s` must be longer than any writer takes from its blob to its pointers; the stores' page tells by how much.
    """
    oldest = clock() - timedelta(seconds=min_age_s)
    page = stores.blobs.page("", size=size, token=token)
    unused = [head.uri for head in page.items if _old(head, oldest) and _unused(stores, head.uri)]
    # Looked for after what is unused, never before: who pins makes sure afterwards that it still was in use.
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
    """Remove names without a resource, and what is left of deleted tables."""
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
    """Remove jobs that were over long ago, of one account after the other; a slice ends after that many accounts."""
    before = (clock() - timedelta(seconds=retention_s)).timestamp()
    account, _, within = (token or "").partition(" ")
    looked_at = 0
    removed: list[str] = []
    for _ in range(accounts):
        account = account if within else _next_account(stores, account)
        if not account:
            return Slice(looked_at, tuple(removed))
        page = stores.pointers.page(f"{account}jobs/by-id/", size=size, token=within or None)
        for pointer in page.items:
            batch = tuple(_finished(stores, pointer, before))
            if batch and (dry_run or _applied(stores, batch)):
                removed.append(pointer.key)
        looked_at, within = looked_at + len(page.items), page.next_token or ""
        if looked_at >= size:
            break
    return Slice(looked_at, tuple(removed), next_token=f"{account} {within}")


def _next_account(stores: Stores, account: str) -> str:
    """What the keys of the account after this one begin with; empty behind the last. Also of accounts that are gone."""
    behind = stores.pointers.token_after(keys.ACCOUNTS, f"{account}\U0010ffff") if account else None
    found = stores.pointers.page(keys.ACCOUNTS, size=1, token=behind).items
    return "/".join(found[0].key.split("/")[:3]) + "/" if found else ""


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
    """Remove credentials that no connector names: what is left by those who died while they changed some."""
    oldest = clock() - timedelta(seconds=min_age_s)
    page = stores.pointers.page(keys.SECRETS, size=size, token=token)
    old = (marker for marker in page.items if marked_at(marker) < oldest)
    removed = [each.key for each in old if removed_if_unused(stores, secrets, each, dry_run=dry_run)]
    return Slice(len(page.items), tuple(removed), next_token=page.next_token)


def _old(head: BlobHead, oldest: datetime) -> bool:
    return head.modified_at < oldest


def _unused(stores: Stores, uri: str) -> bool:
    """Whether the blob is one of ours and its resource names another, or is gone."""
    key = keys.of_blob(uri)
    if key is None:
        return False
    pointer = stores.pointers.get(key)
    return pointer is None or pointer.blob_uri != uri


def _delete_blob(stores: Stores, uri: str, oldest: datetime) -> bool:
    """Once more: whoever is about to name it has written it again."""
    head = stores.blobs.head(uri)
    if head is None or not _old(head, oldest):
        return False
    stores.blobs.delete(uri)
    return True


def _stale(stores: Stores, pointer: Pointer) -> Iterator[Operation]:
    """What removes a pointer that leads nowhere. As all pointers of a resource move at once, a name that still stands
    after its resource was seen without it is stale for good.
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
    found = Repository(stores, JOB).follow(pointer)
    if found and found.value.state in FINISHED and found.value.finished_at.ToSeconds() < before:
        named = filter(None, map(stores.pointers.get, JOB.names(found.value)))
        own = (each for each in named if each.blob_uri == found.pointer.blob_uri)
        yield from (Delete(each.key, expect=each.version) for each in (found.pointer, *own))


def _applied(stores: Stores, batch: tuple[Operation, ...]) -> bool:
    try:
        stores.pointers.apply(batch)
    except Conflict:
        return False
    return True
