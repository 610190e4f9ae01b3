"""The shipped list of Spark's builtin functions and types matches Spark."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.lakes import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*SPARK, pytest.mark.full]

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_builtins.py"


def test_spark_builtins_file_matches_spark(spark: SparkSession) -> None:
    script = runpy.run_path(str(SCRIPT))
    script["write_or_check"]("spark", script["objects_of_spark"](spark), only_check=True)
