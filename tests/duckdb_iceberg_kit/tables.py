"""Creates the tables of the suite through the REST catalog: a program for a process of its own.

It runs the suite's own generators, all in one Spark session; the suite starts one for each table.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from skiway.spark_jobs.java import ICEBERG, ensure_java

AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
LARGE = ("lineitem_sf1_deletes", "tpch")
"""Tables at scale factor 1, which take half an hour."""

FIRST, LAST = "issue_791", "simple_v3_table"
"""A test looks at the numbers of Spark's tasks, which count from the start of the session; and a large table."""

COMPARED = (
    "issue_791",
    "lineitem_001_deletes",
    "lineitem_partitioned_l_shipmode",
    "lineitem_partitioned_l_shipmode_deletes",
    "lineitem_sf1_deletes",
    "lineitem_sf_01_1_delete",
    "lineitem_sf_01_no_deletes",
)
"""The tables whose contents tests compare with Parquet files."""


class Connection:
    """What the generators use: the session, and the names of the suite's configuration for a REST catalog."""

    name, catalog = "spark-rest", "demo"

    def __init__(self, session: SparkSession) -> None:
        self.con = session


def main() -> None:
    """Create all tables, or those that are named, and print what failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path, help="the folder of the suite")
    for option in ("--catalog", "--warehouse", "--s3", "--tpch"):
        parser.add_argument(option, required=True)
    parser.add_argument(
        "--single-thread", action="store_true", help="create the tables that Spark writes with one thread"
    )
    parser.add_argument("--large", action="store_true", help="also create the tables at scale factor 1")
    given = parser.parse_args()
    os.chdir(given.root)
    sys.path.insert(0, str(given.root))
    base = _generators(given)
    names = _names(given)
    failed = [name for name in names if not _created(base, name)]
    print(f"{len(names)} tables, {len(failed)} failed: {', '.join(failed)}")


def _names(given: argparse.Namespace) -> list[str]:
    files = sorted(Path("scripts/data_generators/tests").glob("*/__init__.py"))
    names = [
        file.parent.name for file in files if ("spark-rest-single-thread" in file.read_text()) is given.single_thread
    ]
    if given.single_thread:
        return names
    return [
        FIRST,
        *(name for name in names if name not in (FIRST, LAST, *LARGE)),
        LAST,
        *(LARGE if given.large else ()),
    ]


def _created(base: Any, name: str) -> bool:
    before = len(base.IcebergTest.registry)
    try:
        importlib.import_module(f"scripts.data_generators.tests.{name}")
        for kind in base.IcebergTest.registry[before:]:
            generator = kind()
            generator.write_intermediates = generator.write_intermediates and generator.table in COMPARED
            generator.generate("spark-rest")
    except Exception as error:  # noqa: BLE001 - the suite's code and Spark raise anything
        print(f"{name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
        return False
    return True


def _generators(given: argparse.Namespace) -> Any:
    """Import the generators' base class, with a connection that keeps our session."""
    import duckdb

    _load_tpch(duckdb, given.tpch)
    connection = Connection(_session(given))
    connections: Any = types.ModuleType("scripts.data_generators.connections")
    connections.IcebergConnection = types.SimpleNamespace(get_class=lambda _: lambda **_: connection)
    connections.base = connections
    sys.modules |= {connections.__name__: connections, f"{connections.__name__}.base": connections}
    tests: Any = types.ModuleType("scripts.data_generators.tests")  # the suite's own imports every generator at once
    tests.__path__ = ["scripts/data_generators/tests"]
    sys.modules[tests.__name__] = tests
    base = importlib.import_module("scripts.data_generators.tests.base")
    tests.IcebergTest = base.IcebergTest
    base.IcebergTest.close_connection = lambda *_: None
    return base


def _load_tpch(duckdb: Any, extension: str) -> None:
    """Load the extension that generates TPC-H's tables into each new database."""
    connect = duckdb.connect

    def connect_with_tpch(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **({"config": {"allow_unsigned_extensions": "true"}} | options))
        connection.execute(f"LOAD '{extension}'")
        return connection

    duckdb.connect = connect_with_tpch


def _session(given: argparse.Namespace) -> SparkSession:
    ensure_java()
    os.environ |= {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": given.catalog,
        ".warehouse": given.warehouse,
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": given.s3,
        ".s3.path-style-access": "true",
    }
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.jars.packages": f"{ICEBERG},{AWS}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **{f"spark.sql.catalog.demo{name}": value for name, value in catalog.items()},
    }
    builder = SparkSession.builder.appName("tables of the suite").master(
        "local[1]" if given.single_thread else "local[4]"
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.sql("USE demo")
    session.sql("CREATE NAMESPACE IF NOT EXISTS default")
    return session


if __name__ == "__main__":
    main()
