"""The parts that all processes of a server have: the stores, access to them, the tables, and the sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from skiway.config import Settings
from skiway.config.server import Server
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.foundation.memory_budget import MemoryBudget, available_bytes, collect_and_release
from skiway.lake.reading.opened_tables import Handles
from skiway.metastore import Realm
from skiway.metastore.migrations import watching_format
from skiway.metastore.platform import AccountDirectory, TokenUses, account_quotas, signing_key
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.seeding import seed_demo, seed_home, seed_iceberg, seed_mirror
from skiway.request_path import Access, Lanes, Observers, Operators, Quotas
from skiway.runtime.authentication import authenticator, authorizer, credential_headers, with_jobs
from skiway.runtime.lake import handles_of, job_tokens, warehouse_of
from skiway.runtime.lifecycle import repeating
from skiway.runtime.source_access import source_access_of
from skiway.runtime.stores import secrets_of, store_urls, stores_of
from skiway.runtime.telemetry import observing
from skiway.runtime.workers import reconciler_of
from skiway.security import SecretsStore
from skiway.security.source_access import SourceAccess
from skiway.storage import Stores
from skiway.telemetry.metrics import observe_caches

REALMS: Final = 1000
REFUSAL_S: Final = 0.25
"""How long a call beyond a quota waits before it is rejected."""
RELEASE_S: Final = 30.0
"""How often freed memory is returned to the system."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a process. It writes to `folders` of this machine. `addresses` has the addresses by service, once the doors are open."""

    settings: Settings
    observers: Observers
    stores: Stores
    secrets: SecretsStore
    warehouse: Warehouse
    sources: SourceAccess
    access: Access
    handles: Handles
    reconciler: Reconciler
    folders: tuple[Path, ...] = ()
    addresses: dict[str, str] = field(default_factory=dict)

    @property
    def operators(self) -> Operators:
        """Who may see reflection, metrics and the details of health."""
        return Operators.of(self.access, self.settings.server.operator_networks)

    def signing_key(self) -> bytes:
        """The key that the servers of a store share."""
        return signing_key(self.stores, self.secrets)


@contextmanager
def opened_parts(settings: Settings, home: Path, *, seeded: bool = False) -> Iterator[Parts]:
    """The parts of a process, for the duration of the block. If `seeded`, a new store gets its initial content first."""
    with (
        observing(settings) as observers,
        stores_of(settings, home, metrics=observers.metrics) as stores,
        watching_format(stores),
        repeating(collect_and_release, name="memory", every_s=RELEASE_S, stop_s=1.0),
    ):
        secrets = secrets_of(settings)
        if seeded:
            seed(stores, settings, secrets, home)
        warehouse, sources = warehouse_of(settings), source_access_of(settings, home)
        observe_caches(observers.metrics, {"metadata.files": warehouse.cache.stats})
        yield Parts(
            settings,
            observers,
            stores,
            secrets,
            warehouse,
            sources,
            access_of(settings, stores, secrets),
            handles_of(secrets, warehouse, sources),
            reconciler_of(settings, secrets, warehouse, sources),
            folders_of(settings, home, warehouse),
        )


def folders_of(settings: Settings, home: Path, warehouse: Warehouse) -> tuple[Path, ...]:
    """The folders of this machine in which the stores and the warehouse are."""
    urls = store_urls(settings, home)
    places = [home] if urls.pointers.startswith("sqlite:") else []
    files = (urls.blobs, uri_of(warehouse.root))
    places += [Path(unquote(urlsplit(each).path)) for each in files if each.startswith("file:")]
    return tuple(dict.fromkeys(places))


def seed(stores: Stores, settings: Settings, secrets: SecretsStore, home: Path) -> None:
    """Create the initial content of a new store, and the demo data if configured."""
    seed_home(stores)
    if not settings.seed.enabled:
        return
    if settings.seed.mode == "iceberg":
        seed_iceberg(stores, warehouse_of(settings))
        seed_mirror(stores, home.resolve() / "examples", secrets=secrets, sync=settings.seed.sync.enabled)
    else:
        seed_demo(stores)


def access_of(settings: Settings, stores: Stores, secrets: SecretsStore | None = None) -> Access:
    """Authentication and authorization, the same for all servers. Without `secrets`, no access tokens are issued."""

    @lru_cache(REALMS)
    def realm_of(account_id: str, caller: str) -> Realm:
        return Realm(
            stores,
            account_id,
            caller=caller,
            idempotency_ttl_s=settings.idempotency.ttl_seconds,
            events_s=settings.events.retention.total_seconds(),
        )

    made = authenticator(
        settings,
        AccountDirectory(stores),
        note_use=TokenUses(stores).note,
        key=None if secrets is None else partial(signing_key, stores, secrets),
    )
    return Access(
        lambda principal: realm_of(principal.account_id, principal.subject),
        made if secrets is None else with_jobs(settings, made, job_tokens(stores, secrets)),
        authorizer(settings),
        credential_headers(settings),
        Quotas(settings.quotas.caller, settings.quotas.account, pause_s=REFUSAL_S, own=partial(account_quotas, stores)),
        Lanes(credential_headers(settings)),
        MemoryBudget(memory_budget(settings.server)),
    )


def memory_budget(settings: Server) -> int:
    """The memory budget of the process in bytes; 0 is no limit."""
    if settings.memory_budget_bytes is not None:
        return settings.memory_budget_bytes
    return available_bytes() * 3 // 4 // settings.processes
