"""State that belongs to the platform rather than to one account: signing keys, tokens in use, and the accounts of a store.

These functions work on the stores directly, because they are not called on behalf of an account.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_bytes, token_hex
from typing import Final
from urllib.parse import unquote

from skiway.errors import Conflict, Internal, NotFound, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import ACCOUNT
from skiway.metastore.records.names import normal_text
from skiway.metastore.records.repository import Repository
from skiway.metastore.records.updates import delete_plain
from skiway.security import SecretsStore
from skiway.storage import ABSENT, Clock, Pointer, Stores, blob_uri, utc_now

REFERENCE: Final = "in-secrets"
SIGNING: Final = "signing"
OWNER: Final = "platform"
KEY_BYTES: Final = 32
_MAX_FOUND: Final = 10_000

log = logging.getLogger("skiway.metastore")


class AccountDirectory:
    """Finds accounts by id or name. Results are kept while the store is unchanged: a deleted account is rejected at once, on
    every server.
    """

    def __init__(self, stores: Stores) -> None:
        self._pointers = stores.pointers
        self._kept: tuple[Hashable, dict[str, str | None]] = None, {}

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id or, if there is none, with this name."""
        state = self._pointers.state()  # before the account is read
        if state is None:
            return self._read(id_or_name)
        kept_in, found = self._kept
        if kept_in != state or len(found) >= _MAX_FOUND:
            self._kept = _, found = state, {}
        if id_or_name not in found:
            found[id_or_name] = self._read(id_or_name)
        return found[id_or_name]

    def _read(self, id_or_name: str) -> str | None:
        if self._pointers.get(keys.account(id_or_name)) is not None:
            return id_or_name
        return _account_id(self._pointers.get(keys.account_name(normal_text(id_or_name))))

    def first(self) -> str | None:
        """The id of the account whose name sorts first."""
        page = self._pointers.page(keys.account_name(), size=1)
        return _account_id(page.items[0]) if page.items else None


def _account_id(pointer: Pointer | None) -> str | None:
    return None if pointer is None else keys.last_segment(keys.owner(pointer))


def account_ids(stores: Stores) -> Iterable[str]:
    """The ids of all accounts."""
    return (unquote(keys.last_segment(pointer.key)) for pointer in stores.pointers.scan(keys.account()))


def visit_accounts(
    stores: Stores,
    prefix_of: Callable[[str], str],
    visit: Callable[[str, Pointer], None],
    *,
    size: int,
    token: str | None = None,
) -> tuple[int, str | None]:
    """Visit the next pointers under a prefix in each account, in pages of `size`.

    Returns how many there were, and the token to continue with; None at the end.
    """
    reached, _, within = (token or "").partition(" ")
    visited = 0
    for account_id in account_ids(stores):
        if account_id < reached:
            continue
        prefix = prefix_of(account_id)
        page = stores.pointers.page(prefix, size=size, token=within if account_id == reached and within else None)
        while True:
            for pointer in page.items:
                visit(account_id, pointer)
            visited += len(page.items)
            if page.next_token is None:
                break
            if visited >= size:
                return visited, f"{account_id} {page.next_token}"
            page = stores.pointers.page(prefix, size=size, token=page.next_token)
    return visited, None


def account_quotas(stores: Stores, account_id: str) -> Mapping[str, float]:
    """The quotas that an account sets for itself; none if its record is missing or damaged."""
    try:
        account = Repository(stores, ACCOUNT).named(keys.account(account_id))
    except Internal:
        return {}
    return {} if account is None else dict(account.quotas)


def pointer_count(stores: Stores, account_id: str) -> int:
    """The number of pointers of an account."""
    return stores.pointers.count(keys.of_account(account_id))


def blob_sizes(stores: Stores, account_id: str) -> Iterable[int]:
    """The sizes of all blobs of an account, in bytes."""
    folder = keys.folder(keys.of_account(account_id)).rstrip("/")
    return (head.size_bytes for head in stores.blobs.scan(folder))


class TokenUses:
    """Records when each token was last used, to the minute: one write per token, server and minute at most."""

    def __init__(self, stores: Stores, *, every_s: float = 60.0, clock: Clock = utc_now) -> None:
        self._pointers = stores.pointers
        self._every = timedelta(seconds=every_s)
        self._clock = clock
        self._noted: dict[str, datetime] = {}

    def note(self, sha256: str) -> None:
        """Record that the token with this hash is used now. A failure is logged: it must not fail the call."""
        now, before = self._clock(), self._noted.get(sha256)
        if before is not None and now - before < self._every:
            return
        self._noted[sha256] = now
        key = keys.token_use(sha256)
        try:
            pointer = self._pointers.get(key)
            if pointer is not None and datetime.fromisoformat(pointer.blob_uri) + self._every > now:
                return  # another server has just recorded it
            expect = ABSENT if pointer is None else pointer.version
            self._pointers.compare_and_set(key, now.isoformat(), expect=expect)
        except Conflict:
            pass  # another server was first
        except SkiwayError:
            log.warning("the use of a token could not be recorded", exc_info=True)


def token_uses(stores: Stores) -> Mapping[str, datetime]:
    """When tokens were last used, by their hashes."""
    found = stores.pointers.scan(keys.token_use())
    return {keys.last_segment(each.key): datetime.fromisoformat(each.blob_uri) for each in found}


class EndedSessions:
    """The sessions of the explorer that have ended before they expired: all servers of a store refuse them."""

    def __init__(self, stores: Stores) -> None:
        self._pointers = stores.pointers

    def add(self, session_id: str, expires_at: datetime) -> None:
        """Record that a session has ended, until it would have expired."""
        with suppress(Conflict):  # it is recorded already
            self._pointers.compare_and_set(
                keys.ended_session(session_id), "ended", expect=ABSENT, expires_at=expires_at
            )

    def __contains__(self, session_id: object) -> bool:
        return self._pointers.get(keys.ended_session(str(session_id))) is not None


def forget_token(stores: Stores, sha256: str) -> None:
    """Delete the record of a token that was revoked."""
    delete_plain(stores, keys.token_use(sha256))  # unless a server has just recorded a use; the next command deletes it


def signing_key(stores: Stores, secrets: SecretsStore) -> bytes:
    """The key that signs tickets and transaction ids. All servers of a store share it; the first one creates it.

    It is in the secrets store, and a pointer names the secret; in a store of format 1, the pointer may be the key. If the
    secret is lost, for example because secrets are kept in memory, a new key replaces it.
    """
    while True:
        pointer = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
        if pointer is not None:
            prefix, _, named = pointer.blob_uri.rpartition(":")
            if prefix != REFERENCE:
                return bytes.fromhex(pointer.blob_uri)  # of format 1, until `skiway migrate` moves the key
            with suppress(NotFound):
                return secrets.get(OWNER, SIGNING, named)
            log.warning(
                "the key that signs tickets is not in the secrets store, so a new one is created: servers that share a "
                "pointer store must also share the secrets store"
            )
        secret_id = token_hex(16)
        secrets.put(OWNER, SIGNING, secret_id, token_bytes(KEY_BYTES))
        try:
            stores.pointers.compare_and_set(
                keys.AIRPORT_SIGNING_KEY,
                f"{REFERENCE}:{secret_id}",
                expect=ABSENT if pointer is None else pointer.version,
            )
        except (Conflict, NotFound):  # another server was first
            secrets.delete(OWNER, SIGNING, secret_id)


def move_signing_key(stores: Stores, secrets: SecretsStore) -> None:
    """Move the signing key from the pointer that old versions stored it in to the secrets store, if it is still there.

    The id of the secret depends on the key, so that an interrupted or concurrent move writes the same secret again.
    """
    pointer = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
    if pointer is None or pointer.blob_uri.startswith(f"{REFERENCE}:"):
        return
    secret_id = sha256(pointer.blob_uri.encode()).hexdigest()[:32]
    secrets.put(OWNER, SIGNING, secret_id, bytes.fromhex(pointer.blob_uri))
    with suppress(Conflict, NotFound):  # another migration was first
        stores.pointers.compare_and_set(keys.AIRPORT_SIGNING_KEY, f"{REFERENCE}:{secret_id}", expect=pointer.version)


def store_checks(stores: Stores) -> dict[str, Callable[[], object]]:
    """A check for each store, by its name, that raises if the store does not answer."""
    probe = blob_uri(b"", folder="platform/readiness")
    return {
        "pointer store": lambda: stores.pointers.get(keys.READINESS),
        "blob store": lambda: stores.blobs.head(probe),
    }
