"""Settings of the metastore's own work: queries, idempotency, collection, reconciling, seeding, caches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from skiway.config.fields import section, setting
from skiway.config.values import (
    COUNT,
    DURATION,
    FLAG,
    MILLIS,
    PATH,
    SECRET,
    TEXT,
    Secret,
    choice,
    pairs,
    pattern,
    whole,
)

__all__ = [
    "Gc",
    "Idempotency",
    "JobStore",
    "Metadata",
    "Metrics",
    "Query",
    "Reconciler",
    "Seed",
    "Spark",
    "StorageUsage",
    "System",
]

# A blob may be written, and found already there, up to ten seconds before a pointer leads to it.
MIN_AGE = whole(at_least=10_000, of=" of milliseconds")

UNUSED = "Understood and without effect: {}."

CONNECT_URL = pattern(r"sc://\S+", "the address of a Spark Connect server, such as sc://host:15002")
SPARK_CONF = pairs("spark.executor.memory=4g; spark.executor.cores=2")

JobBackend = Literal["durable", "memory"]
ReconcilerBackend = Literal["local", "remote"]
SourceAddresses = Literal["public", "private", "any"]
SeedMode = Literal["fake", "iceberg"]


@section
class Query:
    """Leases of queries."""

    default_ttl_ms: int = setting(60_000, COUNT, "How long a query lives that does not say so itself.")
    ended_grace_ms: int = setting(15_000, MILLIS, "How long an ended query can still be asked for.")
    max_size: int = setting(10_000, COUNT, "How many queries are remembered at once.")
    safety_expiry_minutes: int = setting(10, COUNT, UNUSED.format("queries are kept in the store until they expire"))


@section
class Idempotency:
    """Idempotency keys."""

    ttl_seconds: int = setting(900, COUNT, "How long a repeated call with the same key gets the first answer.")


@section
class IdempotencyGc:
    """Collection of expired idempotency records."""

    enabled: bool = setting(True, FLAG, "Collect expired idempotency records.")
    tick_every: timedelta = setting(timedelta(seconds=60), DURATION, "Time between two slices.")
    page_size: int = setting(500, COUNT, "Records looked at in one step.")
    batch_limit: int = setting(2_000, COUNT, "Records removed in one slice.")
    slice_millis: int = setting(1_500, COUNT, "How long a slice may take.")
    accounts_page_size: int = setting(50, COUNT, UNUSED.format("pages go through the whole store, not by account"))


@section
class CasGc:
    """Collection of blobs that nothing points to."""

    enabled: bool = setting(True, FLAG, "Collect blobs that nothing points to.")
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Time between two slices.")
    page_size: int = setting(500, COUNT, "Blobs looked at in one step.")
    min_age_ms: int = setting(30_000, MIN_AGE, "A younger blob is left alone: its pointer may be on its way.")
    max_tick_millis: int = setting(4_000, COUNT, "How long a slice may take.")
    accounts_page_size: int = setting(50, COUNT, UNUSED.format("pages go through the whole store, not by account"))


@section
class PointerGc:
    """Collection of pointers that lead nowhere."""

    enabled: bool = setting(True, FLAG, "Collect pointers that lead nowhere.")
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Time between two slices.")
    page_size: int = setting(500, COUNT, "Pointers looked at in one step.")
    min_age_ms: int = setting(30_000, MIN_AGE, UNUSED.format("a pointer is judged by its version, not by its age"))
    max_tick_millis: int = setting(4_000, COUNT, "How long a slice may take.")
    accounts_page_size: int = setting(50, COUNT, UNUSED.format("pages go through the whole store, not by account"))


@section
class JobsGc:
    """Collection of reconcile jobs that are over."""

    enabled: bool = setting(True, FLAG, "Collect jobs that were over long ago.")
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Time between two slices.")
    page_size: int = setting(200, COUNT, "Jobs looked at in one step.")
    batch_limit: int = setting(1_000, COUNT, "Jobs removed in one slice.")
    global_ready_batch_limit: int = setting(1_000, COUNT, UNUSED.format("gc.pointer removes them"))
    slice_millis: int = setting(4_000, COUNT, "How long a slice may take, if shorter than `max_tick_millis`.")
    max_tick_millis: int = setting(4_000, COUNT, "How long a slice may take.")
    accounts_page_size: int = setting(50, COUNT, "Accounts whose jobs are looked at in one step.")
    retention_ms: int = setting(604_800_000, MILLIS, "How long a finished job is kept.")


@section
class WarehouseGc:
    """Collection of files of managed tables that nothing refers to."""

    enabled: bool = setting(True, FLAG, "Collect files of managed tables that nothing refers to.")
    tick_every: timedelta = setting(timedelta(hours=1), DURATION, "Time between two slices.")
    page_size: int = setting(20, COUNT, "Tables looked at in one step.")
    min_age_ms: int = setting(
        259_200_000,
        MIN_AGE,
        "A younger file is left alone, and so is what a table referred to within that time: longer than a statement "
        "writes nothing, and longer than a query reads.",
    )
    max_tick_millis: int = setting(30_000, COUNT, "How long a slice may take.")


@section
class Gc:
    """Garbage collection."""

    idempotency: IdempotencyGc = IdempotencyGc()
    cas: CasGc = CasGc()
    pointer: PointerGc = PointerGc()
    reconcile_jobs: JobsGc = JobsGc()
    warehouse: WarehouseGc = WarehouseGc()


@section
class JobStore:
    """The queue of reconcile jobs."""

    backend: JobBackend = setting(
        "durable",
        choice(JobBackend),
        "Where jobs are kept. Both mean the same: with everything else, in whichever store that is.",
    )
    max_attempts: int = setting(8, COUNT, "Attempts before a job has failed.")
    base_backoff_ms: int = setting(500, COUNT, "Wait after the first failed attempt; it doubles with each more.")
    max_backoff_ms: int = setting(30_000, COUNT, "The longest wait between attempts.")
    lease_ms: int = setting(30_000, COUNT, "How long a worker owns a job without renewing it.")
    reclaim_interval_ms: int = setting(5_000, COUNT, UNUSED.format("they are looked for whenever one is asked for"))
    ready_scan_limit: int = setting(128, COUNT, "Jobs looked at when one is asked for.")


@section
class ReconcilerAuthorization:
    """How a remote reconciler would authenticate."""

    header: str = setting("authorization", TEXT, UNUSED.format("a worker opens the store itself, by kv and blob"))
    token: Secret | None = setting(None, SECRET, UNUSED.format("a worker opens the store itself, by kv and blob"))


@section
class Spark:
    """Where tables are profiled."""

    master: str = setting(
        "local[*]", TEXT, "Master of the Spark session: this machine, or a cluster such as spark://host:7077."
    )
    remote: str | None = setting(
        None, CONNECT_URL, "Spark Connect server to profile on instead; this process then needs no Java."
    )
    conf: tuple[str, ...] = setting(
        (), SPARK_CONF, "Settings of Spark's own, in TOML as a list too; they win over what Skiway sets."
    )


@section
class Reconciler:
    """Work on connectors."""

    backend: ReconcilerBackend = setting(
        "local", choice(ReconcilerBackend), "Whether jobs run in this server, or in processes of `skiway worker` only."
    )
    poll_every: timedelta = setting(
        timedelta(seconds=1),
        DURATION,
        "Time between two looks at the queue, and at connectors that are due by their policy.",
    )
    parallel_jobs: int = setting(1, whole(at_least=1, at_most=64), "Jobs a process works on at a time.")
    source_addresses: SourceAddresses = setting(
        "private",
        choice(SourceAddresses),
        "Where catalogs, token endpoints and object stores of sources may be: public addresses; private ones and this "
        "machine too; or also link-local ones, at which clouds tell their machines' secrets.",
    )
    job_store: JobStore = JobStore()
    spark: Spark = Spark()
    authorization: ReconcilerAuthorization = ReconcilerAuthorization()


@section
class SeedSync:
    """Connectors of the demo data."""

    enabled: bool = setting(True, FLAG, "Reconcile the connectors that were seeded.")


@section
class Seed:
    """Demo data."""

    enabled: bool = setting(False, FLAG, "Put demo data into the store at the start; what is there is left alone.")
    mode: SeedMode = setting("fake", choice(SeedMode), "Tables without files, or real Iceberg tables.")
    sync: SeedSync = SeedSync()


@section
class Graph:
    """The cache of what was read of the metastore."""

    cache_max_size: int = setting(50_000, COUNT, "Resources remembered.")


@section
class Hint:
    """The cache of planners' hints."""

    cache_max_weight: int = setting(67_108_864, COUNT, UNUSED.format("planners get no hints yet"))


@section
class FilesCache:
    """The cache of the files of tables."""

    cache_max_weight: int = setting(
        1_073_741_824, COUNT, "Bytes of table metadata, manifests, Parquet footers and lists of files to cache."
    )


@section
class Metadata:
    """Caches of the metastore."""

    graph: Graph = Graph()
    hint: Hint = Hint()
    files: FilesCache = FilesCache()


@section
class SystemGraph:
    """The cache of system catalogs."""

    snapshot_cache_size: int = setting(16, COUNT, "System catalogs remembered, one per engine and version.")


@section
class System:
    """System objects."""

    objects_directory: Path | None = setting(
        None, PATH, "Directory of <engine kind>.pb or .pbtxt files; unless set, those that come with Skiway."
    )
    graph: SystemGraph = SystemGraph()


@section
class StorageUsage:
    """Estimates of what accounts store."""

    refresh: timedelta = setting(timedelta(seconds=30), DURATION, "How old an estimate may get.")
    default_avg_bytes: int = setting(200, COUNT, "Assumed size of a blob while none was sampled.")
    sample_max: int = setting(200, COUNT, "Blobs of an account whose size is looked at.")


@section
class Metrics:
    """What is measured beside calls."""

    storage: StorageUsage = StorageUsage()
