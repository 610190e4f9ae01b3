"""The lake in a process: the warehouse of managed tables, the catalogs over Airport, vended credentials, and Spark."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from skiway.airport import AirportService, Limits
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.sizes import check_stream, check_values
from skiway.config import Settings
from skiway.config.fields import Secret
from skiway.config.metastore import Spark
from skiway.config.server import Grpc, Sql
from skiway.config.server import SparkSql as SparkSqlSettings
from skiway.config.storage import Storage
from skiway.errors import PreconditionFailed, Unavailable
from skiway.formats import open_source
from skiway.formats.files import FileCache
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.object_stores import AzureStorage, GcsStorage
from skiway.foundation import extras
from skiway.lake import Handles, Sources, airport_service
from skiway.lake.context import SparkSql
from skiway.metastore.jobs.queue import is_running
from skiway.metastore.platform import signing_key
from skiway.metastore.reconcile.upstream import Opener
from skiway.metastore.transactions import StagingArea, decode_rows, malformed_rows
from skiway.request_path import Access, Observers
from skiway.runtime.authentication import token_headers
from skiway.sandbox.processes import memory_bytes
from skiway.sandbox.queries import Queries
from skiway.security import IssuedTokenAuthenticator, JobTokens, SecretsStore
from skiway.security.signed_tokens import QueryTokens, ReadOnlyAuthorizer
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.optimizer import SparkOptimizer
from skiway.spark_jobs.session import SparkPlace, settings_for
from skiway.spark_queries.engine import SparkEngine, SparkFunctions, SparkLimits, SparkPlacement
from skiway.spark_queries.supervisor import NEEDED_ABI, can_protect_attributes, landlock_abi, unconfinable, unprotected
from skiway.sql import QueryEngine
from skiway.storage import Stores
from skiway.vending import CredentialsProvider, S3Keys, S3Service, Signer, StagedTables, StaticKeys, Vending


def spark_place(settings: Spark) -> SparkPlace:
    """The location and configuration of the Spark session."""
    conf = dict(each.split("=", 1) for each in settings.conf)
    return SparkPlace(settings.master, settings.remote or "", conf, settings.fetch_jars)


def job_tokens(stores: Stores, secrets: SecretsStore) -> JobTokens:
    """The tokens of jobs. All servers and workers of a store accept those of the others."""
    return JobTokens(partial(signing_key, stores, secrets), runs=partial(is_running, stores))


def optimizer_of(
    settings: Settings, stores: Stores, secrets: SecretsStore, own_uri: Callable[[], str] | None = None
) -> SparkOptimizer:
    """Optimization on Spark. `own_uri` returns the address of the REST door of this process, if it has one."""

    def rest_uri() -> str:
        if settings.maintenance.spark.rest_uri:
            return settings.maintenance.spark.rest_uri.rstrip("/")
        if own_uri is None or settings.reconciler.spark.remote:
            raise PreconditionFailed(
                "Spark needs the address of an Iceberg REST door to optimize tables, and there is none: set "
                "maintenance.spark.rest_uri, for example to http://10.0.0.1:8181/iceberg, or optimize with --engine process",
                key="maintenance.spark.rest_uri",
            )
        return own_uri()

    place = spark_place(settings.reconciler.spark)
    return SparkOptimizer(
        place.session_with_iceberg,
        rest_uri,
        job_tokens(stores, secrets).issue,
        settings.maintenance.spark.from_bytes,
        fetch_jars=place.fetch_jars,
    )


def vending_of(settings: Settings, key: Callable[[], bytes], properties: Mapping[str, str]) -> Vending:
    """How clients get access to files in object stores.

    `key` returns the key that signs tokens of this server. `properties` are those of the warehouse.
    """
    wanted, aws = settings.warehouse.vending, settings.storage.aws
    if not wanted.remote_signing:
        return Vending(_providers(settings, properties))
    signer = Signer(_server_keys(settings), S3Service(aws.s3.endpoint or ""))
    return Vending(_providers(settings, properties), signer, StagedTables(key()))


def _providers(settings: Settings, properties: Mapping[str, str]) -> dict[str, CredentialsProvider]:
    """The providers of credentials by the scheme of locations."""
    vending, found = settings.warehouse.vending, dict[str, CredentialsProvider]()
    if (for_s3 := _s3_provider(settings)) is not None:
        found["s3"] = for_s3
    if vending.gcs.enabled:
        from skiway.vending.gcs_tokens import GcsTokens

        source = GcsStorage(properties).token
        assert source is not None, "settings without credentials are rejected when they are loaded"
        found["gs"] = GcsTokens(source, endpoint=vending.gcs.token_endpoint)
    if vending.azure.enabled:
        from skiway.vending.azure_sas import AzureSignatures

        found["abfss"] = AzureSignatures(AzureStorage(properties), lifetime_s=vending.azure.duration_seconds)
    return found


def _s3_provider(settings: Settings) -> CredentialsProvider | None:
    wanted, aws = settings.warehouse.vending, settings.storage.aws
    match wanted.credentials:
        case "sts":
            from skiway.vending.sts import StsCredentials, StsRole, sts_client

            endpoint = wanted.sts.endpoint or aws.s3.endpoint
            client = sts_client(region=aws.region, endpoint=endpoint, keys=_own_keys(settings))
            role = StsRole(wanted.sts.role_arn or "", wanted.sts.duration_seconds, wanted.sts.external_id or "")
            return StsCredentials(client, role)
        case "static":
            keys = wanted.static
            return StaticKeys(
                accounts=keys.accounts,
                read=_pair(keys.read_access_key_id, keys.read_secret_access_key),
                write=_pair(keys.write_access_key_id, keys.write_secret_access_key),
            )
        case "off":
            return None


def _server_keys(settings: Settings) -> Callable[[], S3Keys]:
    """The keys of the server: those that are configured, or those that boto3 finds and renews."""
    own = _own_keys(settings)
    if own is not None:
        return lambda: own
    with extras.needed("aws", "remote signing with the default credentials of AWS"):
        import boto3

    session = boto3.session.Session(region_name=settings.storage.aws.region)

    def current() -> S3Keys:
        found = session.get_credentials()
        if found is None:
            raise Unavailable("the server has no credentials for S3: ask the operator", key="vending.unavailable")
        frozen = found.get_frozen_credentials()
        return S3Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    return current


def _own_keys(settings: Settings) -> S3Keys | None:
    aws = settings.storage.aws
    token = aws.session_token.reveal() if aws.session_token else ""
    return _pair(aws.access_key_id, aws.secret_access_key, token)


def _pair(key_id: Secret | None, secret: Secret | None, token: str = "") -> S3Keys | None:
    return None if key_id is None or secret is None else S3Keys(key_id.reveal(), secret.reveal(), token)


def warehouse_of(settings: Settings) -> Warehouse:
    """The warehouse, which contains the files of managed tables."""
    uri = settings.warehouse.uri
    assert uri is not None, "the default is in the home directory, which a process always has"
    approved = [(name, place) for name, _, place in (each.partition("=") for each in settings.warehouse.locations)]
    cache = FileCache(settings.metadata.files.cache_max_weight)
    return Warehouse.at(uri, _file_access(settings.storage), cache=cache, approved=approved)


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
    key = signing_key(stores, secrets)
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


def _file_access(settings: Storage) -> dict[str, str]:
    """The settings of object stores, as properties of the warehouse's file access."""
    aws, gcs, azure = settings.aws, settings.gcs, settings.azure
    keys = aws.credentials()
    properties = {
        "s3.region": aws.region,
        "client.region": aws.region,
        "s3.endpoint": aws.s3.endpoint,
        "s3.path-style-access": "true" if aws.s3.endpoint and aws.s3.path_style_access else None,
        "s3.access-key-id": keys.get("access_key_id"),
        "s3.secret-access-key": keys.get("secret_access_key"),
        "s3.session-token": keys.get("session_token"),
        "s3.ambient-credentials": None if aws.access_key_id else "true",
        "gcs.service.host": gcs.endpoint and gcs.endpoint.rstrip("/"),
        "gcs.service-account-file": gcs.service_account_file and str(gcs.service_account_file),
        "adls.endpoint": azure.endpoint and azure.endpoint.rstrip("/"),
        "adls.account-name": azure.account_name,
        "adls.account-key": azure.account_key and azure.account_key.reveal(),
    }
    return {name: value for name, value in properties.items() if value}
