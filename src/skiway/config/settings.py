"""All settings of a process, as one immutable object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from skiway.config.fields import Setting, as_text, section, settings_of, values_of
from skiway.config.metastore import (
    Events,
    Gc,
    Idempotency,
    Maintenance,
    Metadata,
    Metrics,
    Pipelines,
    Profiles,
    Quality,
    Query,
    Reconciler,
    Seed,
    System,
    Webhooks,
)
from skiway.config.server import Auth, Client, Errors, Interceptor, Quotas, Server, Sql
from skiway.config.source_access import Sources
from skiway.config.storage import Blob, Kv, Secrets, Storage, Warehouse
from skiway.config.telemetry import Audit, Log, Telemetry

SHORT_FORMS: Mapping[str, str] = MappingProxyType(
    {section: f"{section}.backend" for section in ("kv", "blob", "secrets", "reconciler.job_store")}
)
"""Sections with a one-word form: `kv = "memory"` is short for `kv.backend = "memory"`."""


@section
class Settings:
    """Every setting. The defaults suit a private server: embedded stores, loopback only."""

    server: Server = Server()
    client: Client = Client()
    auth: Auth = Auth()
    interceptor: Interceptor = Interceptor()
    errors: Errors = Errors()
    quotas: Quotas = Quotas()
    kv: Kv = Kv()
    blob: Blob = Blob()
    storage: Storage = Storage()
    warehouse: Warehouse = Warehouse()
    secrets: Secrets = Secrets()
    sources: Sources = Sources()
    query: Query = Query()
    sql: Sql = Sql()
    idempotency: Idempotency = Idempotency()
    events: Events = Events()
    gc: Gc = Gc()
    maintenance: Maintenance = Maintenance()
    profiles: Profiles = Profiles()
    quality: Quality = Quality()
    webhooks: Webhooks = Webhooks()
    pipelines: Pipelines = Pipelines()
    reconciler: Reconciler = Reconciler()
    metadata: Metadata = Metadata()
    system: System = System()
    metrics: Metrics = Metrics()
    seed: Seed = Seed()
    log: Log = Log()
    audit: Audit = Audit()
    telemetry: Telemetry = Telemetry()


@cache
def known() -> Mapping[str, Setting]:
    """Every setting by key, in the order of the sections."""
    return MappingProxyType({setting.key: setting for setting in settings_of(Settings)})


def describe() -> list[Setting]:
    """Every setting, in the order of the sections: its key, accepted values, default and description."""
    return list(known().values())


def shown(settings: Settings) -> dict[str, str]:
    """Every key with its value as text. Secrets are masked; an unset value is empty."""
    return {key: as_text(value) for key, value in values_of(settings)}


def without_effect(settings: Settings) -> Iterator[Setting]:
    """The settings that differ from their default although changing them has no effect."""
    defaults = dict(values_of(Settings()))
    return (
        known()[key] for key, value in values_of(settings) if known()[key].without_effect and value != defaults[key]
    )


def replaced(settings: Settings) -> Iterator[Setting]:
    """The old settings that are set, and still work."""
    defaults = dict(values_of(Settings()))
    return (known()[key] for key, value in values_of(settings) if known()[key].replaced_by and value != defaults[key])
