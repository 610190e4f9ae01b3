"""The lake in a process: the warehouse of managed tables, and the catalogs over Airport and Iceberg REST."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from skiway import extras
from skiway.airport import AirportService, Limits
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.sizes import check_stream, check_values
from skiway.config import Settings
from skiway.config.server import Grpc, Http
from skiway.config.sql import SparkSql as SparkSqlSettings
from skiway.config.sql import Sql
from skiway.errors import PreconditionFailed
from skiway.formats import open_source
from skiway.formats.files import FileCache
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake import Handles, Sources, airport_service, signing_key
from skiway.lake.spark_sql import SparkSql
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.reconcile.upstream import Opener
from skiway.metastore.transactions import StagingArea, decode_rows, malformed_rows
from skiway.pipeline.session import settings_for
from skiway.requests import Access, Observers
from skiway.rest import RestApp, RestOptions, TokenIssuer
from skiway.runtime.authentication import token_headers
from skiway.runtime.spark import job_tokens
from skiway.sandbox.processes import memory_bytes
from skiway.sandbox.queries import Queries
from skiway.security import IssuedTokenAuthenticator, SecretsStore
from skiway.security.query_tokens import QueryTokens, ReadOnlyAuthorizer
from skiway.security.source_access import SourceAccess
from skiway.spark_queries.confinement import (
    NEEDED_ABI,
    can_protect_attributes,
    landlock_abi,
    unconfinable,
    unprotected,
)
from skiway.spark_queries.engine import SparkEngine, SparkLimits, SparkPlacement
from skiway.spark_queries.functions import SparkFunctions
from skiway.sql import QueryEngine
from skiway.storage import Stores
from skiway.vending import Vending

__all__ = [
    "functions_of",
    "handles_of",
    "iceberg_rest",
    "lake_over_airport",
    "on_loopback",
    "opener_of",
    "queries_of",
    "spark_placement",
    "spark_queries_of",
    "staging_area",
    "warehouse_of",
]


def warehouse_of(settings: Settings) -> Warehouse:
    """The warehouse, which contains the files of managed tables."""
    uri = settings.warehouse.uri
    assert uri is not None, "the default is in the home directory, which a process always has"
    approved = [(name, place) for name, _, place in (each.partition("=") for each in settings.warehouse.locations)]
    cache = FileCache(settings.metadata.files.cache_max_weight)
    properties = {**_s3(settings), **_gcs(settings), **_azure(settings)}
    return Warehouse.at(uri, properties, cache=cache, approved=approved)


def opener_of(warehouse: Warehouse, access: SourceAccess) -> Opener:
    """The function that opens the sources of connectors, as far as `access` permits.

    They share the file cache of the warehouse.
    """
    return partial(open_source, cache=warehouse.cache, access=access)


def handles_of(secrets: SecretsStore, warehouse: Warehouse, access: SourceAccess) -> Handles:
    """The handles that open the tables of connectors and of the warehouse."""
    return Handles(Sources(secrets, opener=opener_of(warehouse, access)), warehouse)


def lake_over_airport(
    access: Access,
    observers: Observers,
    stores: Stores,
    handles: Handles,
    secrets: SecretsStore,
    queries: Queries,
    settings: Settings,
    spark: SparkEngine | None = None,
    location: Callable[[], str] = str,
) -> AirportService:
    """The catalogs of all accounts, for DuckDB to attach. With `spark`, queries can run there, and read them at `location`."""
    grpc = settings.server.grpc
    limits = Limits(
        opening_s=grpc.opening_seconds,
        idle_s=grpc.idle_seconds,
        decoded_bytes=grpc.max_decoded_bytes,
    )
    key = signing_key(Realm(stores, PLATFORM), secrets)
    tokens = QueryTokens(key)
    if spark is not None:  # other doors do not accept the tokens of queries
        access = replace(
            access,
            authenticator=IssuedTokenAuthenticator(access.authenticator, tokens, token_headers(settings)),
            authorizer=ReadOnlyAuthorizer(access.authorizer),
        )
    return airport_service(
        access,
        observers,
        handles=handles,
        key=key,
        limits=limits,
        queries=QueryEngine(queries),
        settings=settings,
        spark=None if spark is None else _spark_sql(spark, tokens, settings.sql.spark, location),
    )


def _spark_sql(
    engine: SparkEngine, tokens: QueryTokens, settings: SparkSqlSettings, location: Callable[[], str]
) -> SparkSql:
    certificates = settings.root_certificates
    return SparkSql(
        engine,
        tokens,
        lambda: settings.location or on_loopback(location()),
        lifetime_s=settings.timeout_seconds,
        root_certificates=str(certificates.resolve()) if certificates else "",
    )


def on_loopback(location: str) -> str:
    """The location for processes on this machine, if the server listens on all addresses."""
    return re.sub(r"//(0\.0\.0\.0|\[::\]):", "//127.0.0.1:", location)


def spark_queries_of(settings: SparkSqlSettings) -> SparkEngine | None:
    """What runs queries of callers on Spark, if the operator allows it."""
    if not settings.enabled:
        return None
    return SparkEngine(
        spark_placement(settings, purpose="queries on Spark"),
        SparkLimits(settings.queries, settings.timeout_seconds, settings.max_rows, memory_bytes(settings.memory_limit)),
    )


def spark_placement(settings: SparkSqlSettings, *, purpose: str) -> SparkPlacement:
    """Where code of callers runs on Spark. Raise if it cannot be confined there."""
    extras.require("pyspark", extra="spark", purpose=purpose)
    if settings.confined and landlock_abi() < NEEDED_ABI:
        raise unconfinable()
    protected = settings.confined and not settings.unprotected_attributes
    if protected and not settings.command and not can_protect_attributes():
        raise unprotected()
    conf = dict(each.split("=", 1) for each in settings.conf)
    settings_for(settings.master, **conf)  # raises for a wrong name
    return SparkPlacement(settings.master, conf, shlex.split(settings.command), settings.confined, protected)


def functions_of(
    settings: Settings, stores: Stores, secrets: SecretsStore, own_location: Callable[[], str] | None = None
) -> SparkFunctions | None:
    """What runs Python functions of pipelines, if the operator allows it.

    `own_location` returns the address at which this process serves Airport, if it does.
    """
    given, spark = settings.pipelines.python, settings.sql.spark
    if not (settings.pipelines.enabled and given.enabled):
        return None

    def location() -> str:
        if spark.location:
            return spark.location
        if own_location is None:
            raise PreconditionFailed(
                "Python functions of pipelines read tables over Airport, and this worker serves none: set sql.spark.location to "
                "the address of a server, such as grpc://10.0.0.2:50051",
                key="pipeline.python.location",
            )
        return on_loopback(own_location())

    return SparkFunctions(
        spark_placement(spark, purpose="Python functions of pipelines"),
        location,
        job_tokens(stores, secrets).issue_reader,
        given.timeout_seconds,
        memory_bytes(given.memory_limit),
        str(spark.root_certificates.resolve()) if spark.root_certificates else "",
    )


def staging_area(warehouse: Warehouse, settings: Grpc) -> StagingArea:
    """Where transactions write rows. A batch takes at most as much memory as one that arrives over Airport."""
    return StagingArea(warehouse, partial(_decoded, max_bytes=settings.max_decoded_bytes))


def _decoded(rows: bytes, *, max_bytes: int) -> Iterator[pa.RecordBatch]:
    with malformed_rows():
        check_stream(rows, max_bytes)
    for batch in decode_rows(rows):
        with malformed_rows():
            check_names(batch.schema)
            batch.validate()
        check_values(batch.columns, max_bytes)
        yield batch


def queries_of(settings: Sql) -> Queries:
    """The worker processes that run queries of callers."""
    return Queries(
        memory_limit=settings.memory_limit,
        timeout_s=settings.timeout_seconds,
        workers=settings.workers,
        threads=settings.threads,
    )


def iceberg_rest(
    access: Access,
    observers: Observers,
    handles: Handles,
    settings: Http,
    *,
    vending: Vending | None = None,
    tokens: TokenIssuer | None = None,
) -> RestApp:
    """The same catalogs for Iceberg clients."""
    return RestApp(
        access,
        observers,
        warehouse=handles.warehouse,
        mirrors=lambda realm, table: handles.open(realm, table, relist=True),
        vending=vending,
        tokens=tokens,
        options=RestOptions(body_s=settings.body_seconds),
    )


def _s3(settings: Settings) -> Mapping[str, str]:
    """The S3 settings, as properties of the warehouse's file access."""
    aws = settings.storage.aws
    given = {
        "s3.region": aws.region,
        "client.region": aws.region,
        "s3.endpoint": aws.s3.endpoint,
        "s3.path-style-access": "true" if aws.s3.endpoint and aws.s3.path_style_access else None,
        "s3.access-key-id": aws.access_key_id and aws.access_key_id.reveal(),
        "s3.secret-access-key": aws.secret_access_key and aws.secret_access_key.reveal(),
        "s3.session-token": aws.session_token and aws.session_token.reveal(),
    }
    ambient = {} if aws.access_key_id else {"s3.ambient-credentials": "true"}
    return {name: value for name, value in given.items() if value} | ambient


def _gcs(settings: Settings) -> Mapping[str, str]:
    """The settings of Google Cloud Storage, as properties of the warehouse's file access."""
    gcs = settings.storage.gcs
    given = {
        "gcs.service.host": gcs.endpoint and gcs.endpoint.rstrip("/"),
        "gcs.service-account-file": gcs.service_account_file and str(gcs.service_account_file),
    }
    return {name: value for name, value in given.items() if value}


def _azure(settings: Settings) -> Mapping[str, str]:
    """The settings of Azure, as properties of the warehouse's file access."""
    azure = settings.storage.azure
    given = {
        "adls.endpoint": azure.endpoint and azure.endpoint.rstrip("/"),
        "adls.account-name": azure.account_name,
        "adls.account-key": azure.account_key and azure.account_key.reveal(),
    }
    return {name: value for name, value in given.items() if value}
