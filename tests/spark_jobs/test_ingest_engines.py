"""Copies of tables that Spark writes with Iceberg's and Delta's own libraries, with deletes by position and by vector."""

from __future__ import annotations

import random
from typing import Any

import pytest

from formats.foreign_tables import make_fixtures
from metastore.ingest.copies import FolderCopy
from skiway.metastore.connectors.specs import CopyMode
from skiway.spark_jobs.key_joins import SparkJoins
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

pytestmark = SPARK

MERGE_ON_READ = ", ".join(f"'write.{each}.mode'='merge-on-read'" for each in ("delete", "update", "merge"))
TABLES = {
    "iceberg": f"CREATE TABLE ice.sales.orders (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ({MERGE_ON_READ})",
    "delta": "CREATE TABLE delta.`{folder}/delta/sales/orders` (id BIGINT, v STRING) USING delta "
    "TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
}


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_upsert_equals_the_source_after_random_changes_by_spark(managed_lake, spark, tmp_path, kind):
    session = session_with_jars(make_fixtures.spark_catalogs(tmp_path))
    name = {"iceberg": "ice.sales.orders", "delta": f"delta.`{tmp_path}/delta/sales/orders`"}[kind]
    session.sql(TABLES[kind].format(folder=tmp_path))
    options = {f"{kind}.source": "filesystem", "namespace": "sales", "uri": str(tmp_path / kind)}
    distribute = SparkJoins(lambda: spark)
    copy = FolderCopy(managed_lake, tmp_path, kind, options=options, distribute=distribute).in_mode(
        CopyMode.UPSERT, "id"
    )
    rng = random.Random(3)

    def rows() -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in session.table(name).collect()), key=repr)

    for load in range(3):
        new = ", ".join(f"({100 * load + number}, 'new {load}')" for number in range(20))
        session.sql(f"INSERT INTO {name} VALUES {new}")
        if load:
            session.sql(f"UPDATE {name} SET v = 'changed {load}' WHERE id % 7 = {rng.randrange(7)}")
            session.sql(f"DELETE FROM {name} WHERE id % 5 = {rng.randrange(5)}")
        assert copy.load()
        assert copy.rows() == rows()
    assert not copy.load()
