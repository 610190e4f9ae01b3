"""The code of Python functions, run in this process: what is a table, and how its mistakes are explained."""

from __future__ import annotations

import sys

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader

from skiway.spark_queries.worker import CodeError, frame_of
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import active

pytestmark = SPARK

IMPORTS = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session. What the code of a function changes in this process is restored."""
    for kind in (SparkSession, DataFrameReader):
        monkeypatch.setattr(kind, "table", kind.table)
    monkeypatch.setitem(sys.modules, "pipeline_file", None)
    return active(spark)


def made(session: SparkSession, code: str, table: str = "daily") -> DataFrame:
    python = {"file": "a/daily.py", "source": IMPORTS + code, "table": table}
    return frame_of(python, {"orders": session.range(3), "s.`x`": session.range(5)})


def test_the_function_of_the_table_is_called(session: SparkSession) -> None:
    code = """
from dataclasses import dataclass

@dataclass
class Pair:
    first: "int"

@dp.materialized_view(name="other.daily", comment="c", partition_cols=["id"])
def f():
    return spark.table("orders").union(spark.read.table(tableName="s.`x`"))

@dp.materialized_view
def daily():
    raise ValueError("not this one")
"""
    assert made(session, code, "other.daily").count() == 8


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("@dp.materialized_view\ndef daily():\n    return [][1]\n", "a/daily.py, line 6: IndexError: list index out of range"),
        ("import nothing_like_this\n", "a/daily.py, line 4: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("import sys\nsys.exit(3)\n", "a/daily.py, line 5: SystemExit: 3"),
        ("@dp.materialized_view\ndef daily():\n    pass\n", "the function of daily returned NoneType, not a DataFrame"),
        ("@dp.materialized_view\ndef daily():\n    return spark.readStream.format('rate').load()\n", "returned a stream"),
        ("if spark is None:\n    @dp.materialized_view\n    def daily(): pass\n", "no function declared the table daily"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(session: SparkSession, code: str, message: str) -> None:
    with pytest.raises(CodeError) as failed:
        made(session, code)
    assert message in str(failed.value)


def test_other_tables_do_not_exist(session: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        made(session, "@dp.materialized_view\ndef daily():\n    return spark.table('ORDERS2')\n")
