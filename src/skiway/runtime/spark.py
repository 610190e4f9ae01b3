"""Spark as configured: where it runs, and how it reaches the lake to optimize tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from skiway.config import Settings
from skiway.config.metastore import Spark
from skiway.errors import PreconditionFailed
from skiway.metastore.jobs.queue import is_running
from skiway.metastore.platform import signing_key
from skiway.pipeline.maintain import SparkOptimizer
from skiway.pipeline.session import SparkPlace
from skiway.security import JobTokens, SecretsStore
from skiway.storage import Stores

__all__ = ["job_tokens", "optimizer_of", "spark_place"]


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
