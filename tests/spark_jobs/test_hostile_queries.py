"""Queries of pipelines that attack the server: none reaches anything but tables that their owner may read.

Each attack contains or leads to a canary. Where Spark itself would show the canary, the test checks that, too: the attack is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory
from skiway.errors import InvalidArgument
from skiway.formats import TableName
from skiway.metastore import Realm
from skiway.metastore.pipelines.spark_sql import SAFE_FUNCTIONS
from skiway.spark_jobs.pipeline_queries import SparkQueries, SparkResult
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK

pytestmark = SPARK

CANARY = "canary-5db1"
OPERATOR_TABLE = "operator_secrets"

REAL_ATTACKS = {
    "text file": "SELECT * FROM text.`{file}`",
    "text file in quotes": "SELECT * FROM `text`.`{file}`",
    "text file by URL": "SELECT * FROM text.`file://{file}`",
    "csv file": "SELECT * FROM csv.`{file}`",
    "parquet file": "SELECT * FROM parquet.`{file}.parquet`",
    "binary file": "SELECT CAST(content AS STRING) FROM binaryFile.`{file}`",
    "file in a subquery": "SELECT (SELECT max(value) FROM text.`{file}`) AS x FROM orders",
    "file in a condition": "SELECT max(value) FROM orders, text.`{file}` WHERE EXISTS (SELECT 1 FROM text.`{file}`)",
    "file behind the name of a CTE": "WITH text AS (SELECT 1) SELECT value FROM text.`{file}`",
    "reflect": "SELECT reflect('java.lang.System', 'getProperty', 'skiway.canary') AS x",
    "java_method": "SELECT java_method('java.lang.System', 'getProperty', 'skiway.canary') AS x",
    "quoted reflect": "SELECT `reflect`('java.lang.System', 'getProperty', 'skiway.canary') AS x",
    "reflect in a lambda": (
        "SELECT transform(array(1), x -> reflect('java.lang.System', 'getProperty', 'skiway.canary')) AS x"
    ),
    "computed function": "SELECT IDENTIFIER('re' || 'flect')('java.lang.System', 'getProperty', 'skiway.canary') AS x",
    "script": "SELECT TRANSFORM(id) USING 'cat {file}' AS (x) FROM orders",
    "variable": "SELECT '${{system:skiway.canary}}' AS x",
    "variable as a name": "SELECT 1 AS `${{system:skiway.canary}}`",
    "computed table": "SELECT * FROM IDENTIFIER('operator_' || 'secrets')",
    "table of the session": "SELECT * FROM {operator}",
    "table of the session through a later CTE": (
        "WITH a AS (SELECT * FROM {operator}), {operator} AS (SELECT 1 AS value) SELECT * FROM a"
    ),
    "statement about settings": "SET spark.skiway.canary",
    "expression in a hint": "SELECT /*+ REPARTITION(2) */ * FROM text.`{file}`",
}
"""Attacks that work on Spark itself. `orders` is a view there."""

OTHER_ATTACKS = {
    "qualified reflect": "SELECT system.builtin.reflect('java.lang.System', 'getProperty', 'skiway.canary') AS x",
    "escaped variable": "SELECT '$\\u007bsystem:skiway.canary}}' AS x",
    "variable in octal": "SELECT '$\\173system:skiway.canary}}' AS x",
    "json file": "SELECT * FROM json.`{file}`",
    "orc file": "SELECT * FROM orc.`{file}`",
    "jdbc": "SELECT * FROM jdbc.`{file}`",
    "delta": "SELECT * FROM delta.`{file}`",
    "iceberg": "SELECT * FROM iceberg.`{file}`",
    "file with a version": "SELECT * FROM parquet.`{file}` VERSION AS OF 1",
    "table function": "SELECT * FROM read_files('{file}')",
    "logs of workers": "SELECT * FROM python_worker_logs()",
    "numbers": "SELECT * FROM range(10)",
    "call of a table function": "SELECT * FROM TABLE(range(3))",
    "stacked statements": "SELECT 1 AS x; SELECT * FROM text.`{file}`",
    "jar": "ADD JAR '{file}'",
    "file for executors": "ADD FILE '{file}'",
    "written table": "SELECT id INTO stolen FROM orders",
    "insert in a CTE": "WITH x AS (INSERT INTO stolen SELECT 1) SELECT * FROM x",
    "script block": "BEGIN SELECT 1; END",
    "immediate": "EXECUTE IMMEDIATE 'SELECT 1'",
    "named parameter": "SELECT :canary AS x",
    "parameter": "SELECT ? AS x",
    "session variable": "SELECT system.session.canary",
    "setting": "SELECT current_setting('spark.skiway.canary')",
    "secret": "SELECT secret('scope', 'key')",
    "user": "SELECT current_user()",
    "user without parentheses": "SELECT session_user",
    "user in quotes": "SELECT `current_user` FROM orders",
    "catalog": "SELECT current_catalog()",
    "version": "SELECT version()",
    "file of the input": "SELECT input_file_name() FROM orders",
    "schema in a file": "SELECT from_protobuf(CAST(id AS BINARY), 'x', '{file}') FROM orders",
    "schema behind a URL": "SELECT from_avro(CAST(id AS BINARY), 'x', map('avroSchemaUrl', '{file}')) FROM orders",
    "external entity": "SELECT xpath_string('<!DOCTYPE a [<!ENTITY b SYSTEM \"{file}\">]><a>&b;</a>', 'a')",
    "schema of XML in a file": "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '{file}'))",
    "message with a value": "SELECT raise_error(id) FROM orders",
    "function of a catalog": "SELECT spark_catalog.default.upper('a')",
    "catalog of Spark": "SELECT * FROM spark_catalog.default.{operator}",
    "temporary table by catalog": "SELECT * FROM system.session.{operator}",
    "global temporary table": "SELECT * FROM global_temp.{operator}",
    "information schema": "SELECT * FROM information_schema.tables",
    "table of another account": "SELECT * FROM secrets",
    "catalog of another account": "SELECT * FROM theirs.private.secrets",
    "id of another account": "SELECT * FROM a2.theirs.private.secrets",
}
"""Attacks that need more than the Spark of the tests has, or that show no canary."""


class OtherAccount(ResourceFactory):
    """Creates resources in account `a2`."""

    @property
    def home(self) -> Realm:
        return self.realm("a2")


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with a table and a setting of the operator."""
    made = spark.newSession()
    made.createDataFrame([(CANARY,)], "value STRING").createOrReplaceTempView(OPERATOR_TABLE)
    made.createDataFrame([(CANARY,)], "value STRING").createOrReplaceGlobalTempView(OPERATOR_TABLE)
    made.conf.set("spark.skiway.canary", CANARY)
    internal = made._jvm
    assert internal is not None
    internal.java.lang.System.setProperty("skiway.canary", CANARY)
    return made


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, session: SparkSession) -> Iterator[PipelineLake]:
    folder = tmp_path_factory.mktemp("hostile")
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        factory.account("a2")
        other = OtherAccount(stores, utc_now)  # type: ignore[arg-type]
        other.namespace("private", catalog=other.catalog("theirs"))
        theirs = ManagedTableFactory.at(other, folder)
        theirs.append(theirs.create("secrets"), 51)
        made = PipelineLake(ManagedTableFactory.at(factory, folder), engine=SparkQueries(session.newSession))
        made.append(made.create(), (1, "eu", 3))
        yield made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the server can read, with the canary; and one in Parquet beside it."""
    made = tmp_path_factory.mktemp("secret") / "secret"
    made.write_text(CANARY)
    pq.write_table(pa.table({"value": [CANARY]}), f"{made}.parquet")
    return made


def attacked(lake: PipelineLake, sql: str) -> str:
    """The error of a pipeline with this query. It must have made no table."""
    lake.queries = {"stolen": sql}
    try:
        outcome = lake.run()
    except InvalidArgument as error:
        return error.message
    assert outcome.changed == 0
    assert lake.pipeline().tables.output(TableName(("sales",), "stolen")) is None
    return outcome.failures["sales.stolen"]


@pytest.mark.parametrize("attack", REAL_ATTACKS)
def test_what_spark_would_show_is_refused(lake: PipelineLake, session: SparkSession, file: Path, attack: str) -> None:
    sql = REAL_ATTACKS[attack].format(file=file, operator=OPERATOR_TABLE)
    session.sql("SELECT 1 AS id").createOrReplaceTempView("orders")
    found = session.sql(sql)
    assert CANARY in json.dumps([found.columns, *map(list, found.collect())], default=str)
    error = attacked(lake, sql)
    assert "cannot be used" in error or "does not exist in catalog lake" in error, error
    assert CANARY not in error


@pytest.mark.parametrize("attack", OTHER_ATTACKS)
def test_other_attacks_are_refused(lake: PipelineLake, file: Path, attack: str) -> None:
    error = attacked(lake, OTHER_ATTACKS[attack].format(file=file, operator=OPERATOR_TABLE))
    refused = ("cannot be used", "does not exist in catalog lake", "UNRESOLVED_COLUMN")
    assert any(each in error for each in refused), error
    assert CANARY not in error


def test_spark_has_a_second_lock_against_files_and_variables(session: SparkSession, file: Path) -> None:
    engine = SparkQueries(session.newSession)
    with (
        pytest.raises(InvalidArgument, match="Spark rejects the query"),
        engine.result(lambda _: f"SELECT * FROM text.`{file}`", {}),
    ):
        pass
    with engine.result(lambda _: "SELECT '${system:skiway.canary}' AS x", {}) as result:
        assert isinstance(result, SparkResult)
        assert result.frame.collect() == [("${system:skiway.canary}",)]


def test_functions_of_spark_are_allowed_or_refused_on_purpose(spark: SparkSession) -> None:
    """A new version of Spark with new functions fails here: look at them, and add them to one of the lists."""
    found = {each[0] for each in spark.newSession().sql("SHOW SYSTEM FUNCTIONS").collect() if each[0].isidentifier()}
    refused = """
        and case in not or assert_true raise_error java_method reflect try_reflect from_avro schema_of_avro to_avro from_protobuf
        to_protobuf from_xml schema_of_xml to_xml xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
        xpath_short xpath_string input_file_block_length input_file_block_start input_file_name python_worker_logs current_catalog
        current_database current_schema current_user session_user user version collations sql_keywords range variant_explode
        variant_explode_outer st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
    """
    assert found - SAFE_FUNCTIONS == set(refused.split())
    assert SAFE_FUNCTIONS - found == {"timestampadd", "timestampdiff", "try_cast"}  # Spark's grammar has these


def test_functions_keep_their_meaning(lake: PipelineLake, session: SparkSession) -> None:
    """The text that Spark gets means what the text of the owner means."""
    columns = [
        *("to_date('2026', 'y')", "array(1, 2)[0]", "date_sub(DATE '2026-01-03', 2)", "percentile_cont(0.5)"),
        *(
            "map('a', 1)['a']",
            "element_at(split('a,b', ','), 2)",
            "'it''s'",
            "'a\\nb\\\\'",
            "substring('abc' FROM 2 FOR 1)",
        ),
        *("extract(YEAR FROM DATE '2026-01-03')", "timestampdiff(DAY, DATE '2026-01-01', DATE '2026-01-03')"),
        *(
            "aggregate(array(1, 2, 3), 0, (total, x) -> total + x)",
            "count(*) FILTER (WHERE id > 0)",
            "1.5BD",
            "7 DIV 2",
        ),
        *(
            "from_json('{\\\"a\\\": 1}', 'a INT').a",
            "date_format(DATE '2026-01-03', 'yyyy-MM')",
            "trim(BOTH 'x' FROM 'xax')",
        ),
    ]
    columns[3] += " WITHIN GROUP (ORDER BY id)"
    sql = f"SELECT {', '.join(f'{each} AS c{number}' for number, each in enumerate(columns))} FROM orders"
    session.sql("SELECT CAST(1 AS BIGINT) AS id").createOrReplaceTempView("orders")
    lake.queries = {"computed": sql}
    assert lake.run().failures == {}
    assert lake.rows("computed") == [tuple(session.sql(sql).collect()[0])]
