"""The Spark session that all tests of this process share; starting one takes twelve seconds of CPU time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import pytest

from formats.foreign_tables import make_fixtures
from skiway.spark_jobs.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.warehouse.dir": Path(gettempdir(), "skiway-tests-spark-warehouse").as_uri(),  # where nothing is written
}


@cache
def shared_session() -> SparkSession:
    """The only Spark of this process. Jars cannot be added to a running Java, so it has those of all tests.

    If the jars cannot be fetched, it starts without them. It ends with the process.
    """
    from pyspark.errors import PySparkRuntimeError

    try:
        return session("tests", "local[2]", **SETTINGS, **make_fixtures.spark_jars())
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        return session("tests", "local[2]", **SETTINGS)


def active(session: SparkSession) -> SparkSession:
    """The session, as the active one, in which Spark looks for data sources in Python."""
    internal: Any = session
    internal._jvm.SparkSession.setActiveSession(internal._jsparkSession)
    return session


def session_with_jars(settings: Mapping[str, str]) -> SparkSession:
    """A new session of the shared Spark, with its own catalogs and the jars of Iceberg and Delta."""
    spark = shared_session()
    if not spark.conf.get("spark.jars.packages", ""):
        pytest.skip("the jars of Iceberg and Delta could not be fetched; to get them: run once with a network")
    made = spark.newSession()
    for name, value in settings.items():
        made.conf.set(name, value)
    return made


def rest_results(uri: str, statements: Sequence[str], *, warehouse: str = "lake", token: str = "anybody") -> list[Any]:
    """Run statements on Spark, whose catalog `lake` is the REST catalog at `uri`.

    Returns for each statement its rows, or the class and message of its error, in the form of JSON.
    """
    spark = session_with_rest_catalog(uri, warehouse=warehouse, token=token)
    return [_result(spark, statement) for statement in statements]


def session_with_rest_catalog(uri: str, *, warehouse: str = "lake", token: str = "anybody") -> SparkSession:
    """A new session of the shared Spark, whose catalog `lake` is the REST catalog at `uri`."""
    return session_with_jars(
        {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "rest",
            "spark.sql.catalog.lake.uri": uri,
            "spark.sql.catalog.lake.warehouse": warehouse,
            "spark.sql.catalog.lake.token": token,
            "spark.sql.catalog.lake.token-refresh-enabled": "false",
            "spark.sql.catalog.lake.cache-enabled": "false",
        }
    )


def _result(spark: SparkSession, statement: str) -> Any:
    try:
        result: object = [list(row) for row in spark.sql(statement).collect()]
    except Exception as error:  # noqa: BLE001 - the test decides what to expect
        result = {"error": type(error).__name__, "message": str(error)[:600]}
    return json.loads(json.dumps(result, default=str))
