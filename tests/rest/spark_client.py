"""Runs statements on Spark, whose catalog `lake` is the server at URI: python spark_client.py URI < statements.json

Prints one line of JSON for each statement: its rows, or the class and message of its error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skiway.pipeline.session import session

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from make_fixtures import SPARK_EXCLUDES, SPARK_PACKAGES  # type: ignore[import-not-found]

SETTINGS = {
    "spark.jars.packages": SPARK_PACKAGES[0],
    "spark.jars.excludes": ",".join(SPARK_EXCLUDES),
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.uri": sys.argv[1],
    "spark.sql.catalog.lake.warehouse": "lake",
    "spark.sql.catalog.lake.token": "anybody",
    "spark.sql.catalog.lake.token-refresh-enabled": "false",
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.shuffle.partitions": 2,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}

with session("rest", "local[2]", **SETTINGS) as spark:
    for statement in json.load(sys.stdin):
        try:
            result: object = [list(row) for row in spark.sql(statement).collect()]
        except Exception as error:  # noqa: BLE001 - the test decides what to expect
            result = {"error": type(error).__name__, "message": str(error)[:600]}
        print(json.dumps(result, default=str), flush=True)
