"""Settings of the metastore: query leases, idempotency, garbage collection, reconciliation, seeding and caches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from skiway.config.fields import (
    COUNT,
    DURATION,
    FLAG,
    MILLIS,
    PATH,
    SECRET,
    TEXT,
    Secret,
    choice,
    number,
    pairs,
    pattern,
    section,
    setting,
    whole,
)
from skiway.config.server import MEMORY

# A blob may be written, or found to exist, up to ten seconds before a pointer refers to it.
MIN_AGE = whole(at_least=10_000, of=" of milliseconds")

NOT_BY_ACCOUNT = "pages cover the whole store, not one account"
NO_REMOTE_CALLS = "a worker opens the stores itself, as `kv` and `blob` say"

CONNECT_URL = pattern(r"sc://\S+", "the URL of a Spark Connect server, such as sc://host:15002")
SPARK_CONF = pairs("spark.executor.memory=4g; spark.executor.cores=2")

JobBackend = Literal["durable", "memory"]
ReconcilerBackend = Literal["local", "remote"]
SourceAddresses = Literal["public", "private", "any"]
SeedMode = Literal["fake", "iceberg"]


@section
class QueryHistory:
    """The history of queries, which `skiway.query_history` shows."""

    keep: timedelta = setting(timedelta(days=7), DURATION, "How long a query is kept in the history.")
    max_queries: int = setting(
        10_000, whole(at_least=0), "Maximum number of queries that are kept per account; 0 means no history."
    )


@section
class Query:
    """Leases of queries, and the history of queries."""

    history: QueryHistory = QueryHistory()

    default_ttl_ms: int = setting(60_000, COUNT, "Lifetime of a query that does not request one.")
    ended_grace_ms: int = setting(15_000, MILLIS, "How long an ended query can still be read.")
    max_size: int = setting(10_000, COUNT, "Maximum number of active queries per account.")
    safety_expiry_minutes: int = setting(
        10,
        COUNT,
        "Upper bound on a query's lifetime in memory.",
        without_effect="queries live in the store until they expire",
    )


@section
class Idempotency:
    """Idempotency keys."""

    ttl_seconds: int = setting(900, COUNT, "How long a repeated call with the same key returns the first response.")


@section
class Events:
    """The feed of changes."""

    retention: timedelta = setting(timedelta(days=7), DURATION, "How long an event can be read.")


@section
class IdempotencyGc:
    """Garbage collection of expired idempotency records."""

    enabled: bool = setting(True, FLAG, "Run the sweep `idempotency` on servers; `skiway gc` always does.")
    tick_every: timedelta = setting(timedelta(seconds=60), DURATION, "Interval between runs.")
    page_size: int = setting(500, COUNT, "Records examined per page.")
    batch_limit: int = setting(2_000, COUNT, "Maximum number of records deleted per run.")
    slice_millis: int = setting(1_500, COUNT, "Time limit of a run.")
    accounts_page_size: int = setting(50, COUNT, "Accounts per page.", without_effect=NOT_BY_ACCOUNT)


@section
class CasGc:
    """Garbage collection of unreferenced blobs."""

    enabled: bool = setting(True, FLAG, "Run the sweep `cas` on servers; `skiway gc` always does.")
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Interval between runs.")
    page_size: int = setting(500, COUNT, "Blobs examined per page.")
    min_age_ms: int = setting(
        30_000, MIN_AGE, "Minimum age of a blob to delete; a younger one may be about to get a pointer."
    )
    max_tick_millis: int = setting(4_000, COUNT, "Time limit of a run.")
    accounts_page_size: int = setting(50, COUNT, "Accounts per page.", without_effect=NOT_BY_ACCOUNT)


@section
class PointerGc:
    """Garbage collection of dangling pointers."""

    enabled: bool = setting(
        True, FLAG, "Run the sweeps `pointer`, `secrets` and `events` on servers; `skiway gc` always does."
    )
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Interval between runs.")
    page_size: int = setting(500, COUNT, "Pointers examined per page.")
    min_age_ms: int = setting(
        30_000,
        MIN_AGE,
        "Minimum age of a pointer to delete.",
        without_effect="a pointer is deleted by version, whatever its age",
    )
    max_tick_millis: int = setting(4_000, COUNT, "Time limit of a run.")
    accounts_page_size: int = setting(50, COUNT, "Accounts per page.", without_effect=NOT_BY_ACCOUNT)


@section
class JobsGc:
    """Garbage collection of finished reconcile jobs."""

    enabled: bool = setting(True, FLAG, "Run the sweep `jobs` on servers; `skiway gc` always does.")
    tick_every: timedelta = setting(timedelta(minutes=10), DURATION, "Interval between runs.")
    page_size: int = setting(200, COUNT, "Jobs examined per page.")
    batch_limit: int = setting(1_000, COUNT, "Maximum number of jobs deleted per run.")
    global_ready_batch_limit: int = setting(
        1_000, COUNT, "Maximum number of queue entries deleted per run.", without_effect="`gc.pointer` deletes them"
    )
    slice_millis: int = setting(4_000, COUNT, "Time limit of a run, if shorter than `max_tick_millis`.")
    max_tick_millis: int = setting(4_000, COUNT, "Time limit of a run.")
    accounts_page_size: int = setting(50, COUNT, "Accounts examined per page.")
    retention_ms: int = setting(604_800_000, MILLIS, "Retention of finished jobs.")


@section
class WarehouseGc:
    """Garbage collection of unreferenced files of managed tables."""

    enabled: bool = setting(
        True, FLAG, "Run the sweeps `transactions`, `branches` and `warehouse` on servers and in `skiway gc`."
    )
    tick_every: timedelta = setting(timedelta(hours=1), DURATION, "Interval between runs.")
    page_size: int = setting(20, COUNT, "Tables examined per page.")
    min_age_ms: int = setting(
        259_200_000,
        MIN_AGE,
        "Minimum age of a file to delete, and minimum time since a table referred to it. Make it longer than any "
        "statement or query takes.",
    )
    idle_branches: timedelta | None = setting(
        None,
        DURATION,
        "How long nothing may have changed on a branch of the lake until it is deleted; never, if not set.",
    )
    max_tick_millis: int = setting(30_000, COUNT, "Time limit of a run.")


@section
class Gc:
    """Garbage collection."""

    idempotency: IdempotencyGc = IdempotencyGc()
    cas: CasGc = CasGc()
    pointer: PointerGc = PointerGc()
    reconcile_jobs: JobsGc = JobsGc()
    warehouse: WarehouseGc = WarehouseGc()


@section
class MaintenanceSpark:
    """Optimization on Spark, which reads and commits through an Iceberg REST door of this lake."""

    from_bytes: int | None = setting(
        None,
        COUNT,
        "Optimize a table on Spark if at least this many bytes are to be rewritten; by default only on request.",
    )
    rest_uri: str | None = setting(
        None,
        TEXT,
        "Address of a REST door, such as http://10.0.0.1:8181/iceberg; by default that of this server, which separate workers and "
        "Spark Connect do not have.",
    )


@section
class Maintenance:
    """Automatic maintenance of managed tables, as far as properties of catalogs, namespaces and tables turn it on."""

    enabled: bool = setting(True, FLAG, "Start the maintenance jobs that properties of tables ask for.")
    tick_every: timedelta = setting(timedelta(hours=1), DURATION, "Interval between runs.")
    page_size: int = setting(20, COUNT, "Tables examined per page.")
    max_tick_millis: int = setting(30_000, COUNT, "Time limit of a run.")
    spark: MaintenanceSpark = MaintenanceSpark()


@section
class Profiles:
    """Profiles: samples of large tables, small tables without Spark, and automatic profiles of managed tables after writes."""

    sample_above_bytes: int = setting(
        1 << 40, COUNT, "If a profile had to read more than this, a sample of the files is profiled."
    )
    sample_bytes: int = setting(100 << 30, COUNT, "Size of the sample.")
    in_process_bytes: int = setting(
        64 << 20,
        whole(at_least=0),
        "The worker reads new files itself, without Spark, if they have at most this many bytes and 16 million values in sum; 0 for never.",
    )

    enabled: bool = setting(
        True, FLAG, "Profile the tables for which `maintenance.profile`, a property, or `profiles.automatic` says so."
    )
    automatic: bool = setting(
        False, FLAG, "Profile managed tables after writes if the property `maintenance.profile` is not set."
    )
    changed_rows: float = setting(
        0.1, number(at_most=1), "Share of the rows that must have changed since the last profile."
    )
    delay: timedelta = setting(
        timedelta(minutes=1),
        DURATION,
        "How long a table must have been unchanged. One that changes all the time is profiled after ten times as long.",
    )
    tick_every: timedelta = setting(timedelta(seconds=30), DURATION, "Interval between runs.")
    page_size: int = setting(50, COUNT, "Tables examined per page.")
    max_tick_millis: int = setting(10_000, COUNT, "Time limit of a run.")


@section
class Quality:
    """Repeated checks of quality rules, also of those that need a profile and have no result for the current snapshot."""

    enabled: bool = setting(True, FLAG, "Check quality rules regularly, in addition to the checks after profiles.")
    tick_every: timedelta = setting(timedelta(minutes=5), DURATION, "Interval between runs.")
    page_size: int = setting(100, COUNT, "Rules checked per page.")
    max_tick_millis: int = setting(10_000, COUNT, "Time limit of a run.")


@section
class Webhooks:
    """The delivery of webhooks. `sources.addresses` says to which addresses they may send."""

    enabled: bool = setting(True, FLAG, "Send events to webhooks.")
    poll_every: timedelta = setting(timedelta(seconds=1), DURATION, "How often to look for new events.")
    parallel: int = setting(8, COUNT, "Webhooks that a server serves at the same time.")
    timeout: timedelta = setting(timedelta(seconds=10), DURATION, "Time limit of a request.")
    max_attempts: int = setting(8, COUNT, "Attempts before an event becomes a dead letter.")
    base_backoff: timedelta = setting(
        timedelta(seconds=1), DURATION, "Pause after the first failed attempt; it doubles with each further one."
    )
    max_backoff: timedelta = setting(timedelta(minutes=5), DURATION, "Longest pause between attempts.")
    keep_dead_letters: timedelta = setting(timedelta(days=30), DURATION, "How long dead letters are stored.")


@section
class PipelinePython:
    """Python functions of pipelines, each in processes of its own. Where they run is set by `sql.spark.*`."""

    enabled: bool = setting(
        False, FLAG, "Run Python functions of pipelines, on servers and workers. Read docs/pipelines.md first."
    )
    timeout_seconds: float = setting(
        3600.0,
        number(at_least=1, of=" of seconds"),
        "How long a function may take, including the start of Spark and the transfer of its rows.",
    )
    memory_limit: str = setting("4GB", MEMORY, "Memory of all processes of a function on this machine.")


@section
class Pipelines:
    """Pipelines: tables that Spark derives with SQL of callers."""

    enabled: bool = setting(
        False, FLAG, "Run pipelines. The SQL of their owners runs in Spark, in the process of the worker."
    )
    python: PipelinePython = PipelinePython()


@section
class JobStore:
    """The queue of reconcile jobs."""

    backend: JobBackend = setting(
        "durable",
        choice(JobBackend),
        "Store of the jobs.",
        without_effect="jobs are stored with everything else, in the pointer and blob stores",
    )
    max_attempts: int = setting(8, COUNT, "Attempts before a job fails.")
    base_backoff_ms: int = setting(
        500, COUNT, "Delay after the first failed attempt; it doubles with each further one."
    )
    max_backoff_ms: int = setting(30_000, COUNT, "Maximum delay between attempts.")
    lease_ms: int = setting(30_000, COUNT, "How long a worker holds a job without renewing its lease.")
    reclaim_interval_ms: int = setting(
        5_000,
        COUNT,
        "Interval of the search for expired leases.",
        without_effect="every request for a job searches for them",
    )
    ready_scan_limit: int = setting(128, COUNT, "Jobs examined per request for a job.")


@section
class ReconcilerAuthorization:
    """Authentication of a remote reconciler. Workers do not call the server, so these settings have no effect."""

    header: str = setting("authorization", TEXT, "Header of the token.", without_effect=NO_REMOTE_CALLS)
    token: Secret | None = setting(None, SECRET, "Token of a worker.", without_effect=NO_REMOTE_CALLS)


@section
class Spark:
    """The Spark session that profiles tables."""

    master: str = setting("local[*]", TEXT, "Spark master: this machine, or a cluster such as spark://host:7077.")
    remote: str | None = setting(
        None, CONNECT_URL, "Spark Connect server to use instead; this process then needs no Java."
    )
    conf: tuple[str, ...] = setting(
        (), SPARK_CONF, "Spark configuration, which overrides what Skiway sets; in TOML it may also be a list."
    )
    fetch_jars: bool = setting(
        True,
        FLAG,
        "Fetch the jars that jobs need by their Maven coordinates: drivers of databases, and Iceberg to optimize.",
    )


@section
class Reconciler:
    """Reconciliation of connectors with their sources."""

    backend: ReconcilerBackend = setting(
        "local",
        choice(ReconcilerBackend),
        "Whether jobs run in the server (`local`) or only in `skiway worker` processes (`remote`).",
    )
    poll_every: timedelta = setting(
        timedelta(seconds=1),
        DURATION,
        "Interval between polls of the job queue and of connectors whose policy is due.",
    )
    parallel_jobs: int = setting(1, whole(at_least=1, at_most=64), "Number of jobs a process runs concurrently.")
    copy_step_bytes: int = setting(
        1 << 30, COUNT, "Copies of files commit after about this many bytes of files; larger copies continue there."
    )
    source_addresses: SourceAddresses | None = setting(
        None,
        choice(SourceAddresses),
        "Addresses that sources may have: public only; or also private and loopback, as with any.",
        replaced_by="sources.addresses",
    )
    job_store: JobStore = JobStore()
    spark: Spark = Spark()
    authorization: ReconcilerAuthorization = ReconcilerAuthorization()


@section
class SeedSync:
    """Synchronization of the seeded connectors."""

    enabled: bool = setting(
        True,
        FLAG,
        "Mirror and profile the files of the seeded connector (`seed.mode` = `iceberg`) once, as a job.",
    )


@section
class Seed:
    """Demo data."""

    enabled: bool = setting(False, FLAG, "Create demo data at startup; existing data is left alone.")
    mode: SeedMode = setting(
        "fake", choice(SeedMode), "Create tables without files (`fake`), or real Iceberg tables (`iceberg`)."
    )
    sync: SeedSync = SeedSync()


@section
class Graph:
    """The cache of metastore records."""

    cache_max_size: int = setting(50_000, COUNT, "Maximum number of cached records.")


@section
class Hint:
    """The cache of the scan planner."""

    cache_max_weight: int = setting(
        67_108_864, COUNT, "Maximum size in bytes of the scan planner's cache of file lists."
    )


@section
class FilesCache:
    """The cache of the files of tables."""

    cache_max_weight: int = setting(
        1_073_741_824,
        COUNT,
        "Maximum size in bytes of the cache of table metadata, manifests, Parquet footers and file lists.",
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

    snapshot_cache_size: int = setting(
        16, COUNT, "Maximum number of cached system catalogs, one per engine and version."
    )


@section
class System:
    """System objects."""

    objects_directory: Path | None = setting(
        None, PATH, "Directory of <engine kind>.pb or .pbtxt files; unless set, the ones included in Skiway."
    )
    graph: SystemGraph = SystemGraph()


@section
class StorageUsage:
    """Estimates of the storage used by each account."""

    refresh: timedelta = setting(timedelta(seconds=30), DURATION, "Maximum age of an estimate.")
    default_avg_bytes: int = setting(200, COUNT, "Assumed average size of a blob until some are sampled.")
    sample_max: int = setting(200, COUNT, "Maximum number of blobs sampled per account.")


@section
class Metrics:
    """Metrics other than those of calls."""

    storage: StorageUsage = StorageUsage()
