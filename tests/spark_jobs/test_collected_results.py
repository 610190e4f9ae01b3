"""What passes through the driver of Spark: the calls that collect results are listed here, with what limits the size of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import skiway

SOURCE = Path(skiway.__file__).parent
PACKAGES = ("spark_jobs", "spark_queries", "spark", "metastore/ingest", "metastore/pipelines", "metastore/quality")
COLLECTING = {
    "collect",
    "toArrow",
    "toPandas",
    "toLocalIterator",
    "pandas_api",
    "take",
    "head",
    "tail",
    "first",
    "show",
    "foreach",
}
OF_ARROW = {"take"}
"""Methods that tables of Arrow have, too. With such a name, only calls on DataFrames of Spark count: these take a single number."""

ALLOWED = {
    ("spark_jobs/ingest/jdbc.py", "fetched", "toArrow"): "rows about a table: figures, columns, or names of tables",
    ("spark_jobs/optimizer.py", "version", "collect"): "the version of Iceberg",
    ("spark_jobs/optimizer.py", "attempt", "collect"): "the figures of a procedure",
    ("spark_jobs/pipeline_queries.py", "values", "toArrow"): "a time, numbers of files, or rows of a unit test",
    ("spark_jobs/profile/scans.py", "_summaries", "toArrow"): "a row of sketches for each part of a file",
    (
        "spark_jobs/quality.py",
        "_texts",
        "toArrow",
    ): "values that a rule asks for by number: ends, a quantile, or one more than it allows",
    ("spark_jobs/quality.py", "_at_place", "collect"): "a limited sample, and four counts",
    ("spark_jobs/tasks.py", "collected", "toArrow"): "an outcome for each task: files, counts and errors",
    ("spark_queries/worker.py", "_batches", "toLocalIterator"): "the rows of a caller's query, streamed to the caller",
}


def calls(source: str) -> Iterator[tuple[str, str]]:
    """The functions with calls that collect, and the names of these."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COLLECTING:
            is_number = len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
            if node.func.attr not in OF_ARROW or is_number:
                yield function, node.func.attr
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    return visit(ast.parse(source), "")


def found() -> set[tuple[str, str, str]]:
    files = [file for package in PACKAGES for file in (SOURCE / package).rglob("*.py")]
    assert len(files) > 30
    return {(str(file.relative_to(SOURCE)), *call) for file in files for call in calls(file.read_text())}


def test_only_listed_calls_collect_results_of_spark() -> None:
    assert found() == set(ALLOWED)


@pytest.mark.parametrize(
    ("line", "name"),
    [("rows = frame.toArrow()", "toArrow"), ("frame.select('id').collect()", "collect"), ("frame.take(10)", "take")],
)
def test_planted_call_is_found(line: str, name: str) -> None:
    assert list(calls(f"def load(frame):\n    {line}")) == [("load", name)]
