"""All settings of a process, as one object that never changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from skiway.config.fields import Setting, section, settings_of, values_of
from skiway.config.metastore import Gc, Idempotency, Metadata, Metrics, Query, Reconciler, Seed, System
from skiway.config.server import Auth, Client, Errors, Interceptor, Server
from skiway.config.storage import Blob, Kv, Secrets, Storage, Warehouse
from skiway.config.telemetry import Audit, Log, Telemetry
from skiway.config.values import as_text

__all__ = ["SHORT_FORMS", "Settings", "describe", "known", "shown"]

# A section that can be said in one word: `kv = "memory"` is short for `kv.backend = "memory"`.
SHORT_FORMS: Mapping[str, str] = MappingProxyType(
    {section: f"{section}.backend" for section in ("kv", "blob", "secrets", "reconciler.job_store")}
)


@section
class Settings:
    """Everything that can be set, with defaults for a server of one's own: embedded stores, loopback only."""

    server: Server = Server()
    client: Client = Client()
    auth: Auth = Auth()
    interceptor: Interceptor = Interceptor()
    errors: Errors = Errors()
    kv: Kv = Kv()
    blob: Blob = Blob()
    storage: Storage = Storage()
    warehouse: Warehouse = Warehouse()
    secrets: Secrets = Secrets()
    query: Query = Query()
    idempotency: Idempotency = Idempotency()
    gc: Gc = Gc()
    reconciler: Reconciler = Reconciler()
    metadata: Metadata = Metadata()
    system: System = System()
    metrics: Metrics = Metrics()
    seed: Seed = Seed()
    log: Log = Log()
    audit: Audit = Audit()
    telemetry: Telemetry = Telemetry()


def describe() -> list[Setting]:
    """Every setting, in the order of the sections: its key, what it takes, its default, what it does."""
    return list(known().values())


@cache
def known() -> Mapping[str, Setting]:
    """The same by key."""
    return MappingProxyType({setting.key: setting for setting in settings_of(Settings)})


def shown(settings: Settings) -> dict[str, str]:
    """Every key with its value as text; secrets as stars, what is unset as an empty text."""
    return {key: as_text(value) for key, value in values_of(settings)}
