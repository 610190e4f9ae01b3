"""Python files of pipelines: which tables they declare, and how runs treat these. The code itself runs in no test here."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from metastore.pipelines.pipeline_lake import LocalFunctions, PipelineLake
from skiway.errors import InvalidArgument
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.pipelines.lineage import read_position
from skiway.metastore.pipelines.projects import DerivedTable, Project, in_order, read_project
from skiway.metastore.resources import policies
from skiway.metastore.usage import usage_of
from skiway.model import v1

HEAD = "name: sales\ncatalog: lake\nnamespace: shop\n"
IMPORTS = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"
BIG = IMPORTS + "@dp.materialized_view\ndef big():\n    return spark.table('orders').where('price > 2')\n"


def project(**files: str) -> Project:
    return read_project({"pipeline.yml": HEAD, **{f"{name}.py": text for name, text in files.items()}})


def table_of(code: str) -> DerivedTable:
    (table,) = project(file=IMPORTS + code).tables.values()
    return table


def reads(code: str) -> list[str]:
    return sorted(str(each) for each in table_of(code).reads.values())


@pytest.mark.parametrize(
    "imported",
    [
        "from pyspark import pipelines as dp\n@dp.materialized_view\n",
        "from pyspark import pipelines\n@pipelines.materialized_view()\n",
        "import pyspark.pipelines\n@pyspark.pipelines.materialized_view()\n",
        "import pyspark.pipelines as p\n@p.materialized_view\n",
        "from pyspark.pipelines import materialized_view\n@materialized_view\n",
        "from pyspark.pipelines import materialized_view as mv\n@mv()\n",
    ],
)
def test_decorated_functions_declare_tables(imported: str) -> None:
    (table,) = project(any_name=f"{imported}def daily():\n    pass\n").tables.values()
    assert (str(table.name), table.file, table.reads) == ("shop.daily", "any_name.py", {})


def test_arguments_of_the_decorator_describe_the_table() -> None:
    table = table_of(
        "@dp.materialized_view(name='other.daily', comment='By day', partition_cols=['day(at)', 'region'])\n"
        "def f():\n    pass\n"
    )
    assert (str(table.name), table.description, table.partition_by) == ("other.daily", "By day", "day(at), region")


def test_tables_are_read_in_functions_that_the_function_mentions() -> None:
    code = """
import pyarrow as pa
import other.module

rates = SparkSession.active().read.table("lake.shop.rates")
known = pa.table({"id": [1]}), other.module.table(rates)

def cleaned():
    return Reader().rows()

class Reader:
    def rows(self):
        return spark.table(tableName="raw.`or.ders`")

def unused():
    return spark.table("unused")

@dp.materialized_view
def daily():
    spark.table("view").createOrReplaceTempView("v")
    return cleaned().join(spark.sql("SELECT * FROM v"))
"""
    assert reads(code) == ["raw.or.ders", "shop.rates", "shop.view"]


def test_a_file_can_declare_several_tables_which_are_ordered_with_queries() -> None:
    found = read_project(
        {
            "pipeline.yml": HEAD,
            "b.sql": "SELECT * FROM c",
            "functions.py": IMPORTS
            + "@dp.materialized_view\ndef a():\n    return spark.table('b')\n"
            + "@dp.materialized_view\ndef c():\n    return spark.table('orders')\n",
        }
    )
    assert [each.name.name for each in in_order(found)] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f():\n    pass\n", "no function makes a table: write @dp.materialized_view before one"),
        ("class C:\n    @dp.materialized_view\n    def f(self): pass\n", "no function makes a table"),
        ("@dp.table\ndef f(): pass\n", "@table of pyspark.pipelines is not supported, in line 4: use @dp.materialized"),
        ("@dp.append_flow(target='x')\ndef f(): pass\n", "@append_flow of pyspark.pipelines is not supported"),
        ("@dp.materialized_view\ndef f(x): pass\n", "function f has parameters or is async"),
        ("@dp.materialized_view\nasync def f(): pass\n", "function f has parameters or is async"),
        ("@dp.materialized_view(schema='a int')\ndef f(): pass\n", "has the argument schema, in line 4; those that can"),
        ("@dp.materialized_view(**{})\ndef f(): pass\n", "has the argument **, in line 4"),
        ("@dp.materialized_view(name=1)\ndef f(): pass\n", "name of @materialized_view must be a text in the code"),
        ("@dp.materialized_view(name=x)\ndef f(): pass\n", "name of @materialized_view must be a text in the code"),
        ("@dp.materialized_view(partition_cols='a')\ndef f(): pass\n", "partition_cols of @materialized_view must be a"),
        ("@dp.materialized_view(name='a b.')\ndef f(): pass\n", "'a b.' is not the name of a table"),
        ("@dp.materialized_view\ndef f(): spark.table(x)\n", "the name of the table in line 5 is computed"),
        ("@dp.materialized_view\ndef f(): spark.read.table(f'{x}')\n", "the name of the table in line 5 is computed"),
        ("@dp.materialized_view\ndef f(): spark.table('a b')\n", "'a b' is not the name of a table, in line 5"),
        ("@dp.materialized_view\ndef f(): spark.table('a.(b')\n", "'a.(b' is not the name of a table, in line 5"),
        ("@dp.materialized_view\ndef f(): spark.table('range(3)')\n", "'range(3)' is not the name of a table, in line 5"),
        ("@dp.materialized_view\ndef f(): spark.table('`a')\n", "'`a' is not the name of a table, in line 5"),
        ("@dp.materialized_view\ndef f(): spark.table('')\n", "'' is not the name of a table, in line 5"),
        ("def f(:\n", "it is not valid Python in line 4: invalid syntax"),
        ("x = '\0'", "it is not valid Python"),
        ("x = a" + ".b" * 100_000, "it is not valid Python: it is nested too deeply"),
        ("x = " + "-" * 100_000 + "1", "it is not valid Python: it is nested too deeply"),
        ("@dp.materialized_view\ndef f(): spark.table('F')\n", "table shop.f reads itself, in file.py"),
    ],
)  # fmt: skip
def test_mistakes_in_python_files_are_explained(code: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        in_order(project(file=IMPORTS + code))
    assert message in str(refused.value)


def test_queries_and_functions_that_read_each_other_are_a_cycle() -> None:
    files = {"pipeline.yml": HEAD, "a.sql": "SELECT * FROM big", "big.py": BIG.replace("orders", "a")}
    with pytest.raises(InvalidArgument, match=r"shop\.\w+ reads shop\.\w+ reads shop\.\w+"):
        in_order(read_project(files))


def test_a_query_and_a_function_cannot_make_the_same_table() -> None:
    files = {"pipeline.yml": HEAD, "big.py": BIG, "x/Big.sql": "SELECT 1 AS x"}
    with pytest.raises(InvalidArgument, match=r"big\.py also defines table"):
        read_project(files)


def test_only_changes_of_the_code_change_the_definition() -> None:
    def digest(text: str) -> str:
        return next(iter(project(big=text).tables.values())).digest

    assert digest(BIG) == digest(f"# A comment.\n\n{BIG}".replace("'orders'", '"orders"'))
    assert len({digest(BIG), digest(BIG.replace("2", "3")), digest(BIG.replace("orders", "raw.orders"))}) == 3


@pytest.mark.parametrize(("call", "expected"), [("F.current_date()", True), ("rand()", True), ("F.upper('x')", False)])
def test_calls_of_time_and_chance_are_noticed(call: str, expected: bool) -> None:
    helper = f"def helper():\n    return {call}\n@dp.materialized_view\ndef f():\n    return helper()\n"
    assert table_of(helper).query.changes_by_itself is expected


# --- runs -------------------------------------------------------------------------------------------------------------


def big(tables: dict[str, pa.Table]) -> pa.Table:
    rows = tables["orders"]
    return rows.filter(pc.greater(rows["price"], 2)).select(["id", "price"])


@pytest.fixture
def sales(lake: PipelineLake) -> PipelineLake:
    """The function `big` reads `orders`, and the query `totals` reads `big`."""
    lake.queries = {"big.py": BIG, "totals": "SELECT CAST(sum(price) AS BIGINT) AS total FROM big"}
    lake.functions = LocalFunctions({"big": big})
    lake.append(lake.create(), (1, "eu", 3), (2, "us", 1), (3, "eu", 5))
    return lake


def test_functions_and_queries_are_refreshed_in_order_and_only_if_needed(sales: PipelineLake) -> None:
    assert sales.run().failures == {}
    assert (sales.rows("big"), sales.rows("totals")) == ([(1, 3), (3, 5)], [(8,)])
    assert sales.run().changed == 0
    sales.append(sales.table("orders"), (4, "eu", 10))
    decisions = sales.pipeline().decisions()
    found = decisions["sales.big"]
    assert not isinstance(found, str)
    assert (found.action, found.reason) == (
        "replace",
        "sales.orders changed, and Python functions are refreshed in full",
    )
    assert sales.run().changed == 2
    assert (sales.rows("big"), sales.rows("totals")) == ([(1, 3), (3, 5), (4, 10)], [(18,)])
    assert sales.functions is not None
    assert sales.functions.calls == ["big", "big"]


def test_a_changed_function_rebuilds_its_table_and_dependents(sales: PipelineLake) -> None:
    sales.run()
    sales.queries["big.py"] += "# A comment is no change.\n"
    assert sales.actions() == {"big": "keep", "totals": "keep"}
    sales.queries["big.py"] = BIG.replace("2", "3").replace(
        "@dp.materialized_view", "@dp.materialized_view(comment='Large', partition_cols=['bucket(4, id)'])"
    )
    assert sales.actions() == {"big": "replace", "totals": "replace"}
    sales.run()
    table = sales.table("big").metadata
    assert (len(table.spec().fields), table.properties["comment"]) == (1, "Large")
    assert sales.run().changed == 0


def test_the_position_and_the_lineage_are_those_of_the_inputs(sales: PipelineLake) -> None:
    sales.run()
    made, orders = sales.table("big"), sales.table("orders")
    position = read_position(made.metadata).value
    assert position is not None
    assert {name: state.snapshot for name, state in position.inputs.items()} == {
        "sales.orders": orders.metadata.current_snapshot_id
    }
    assert [set(used.sources) for _, used in usage_of(sales.lake.home, made.id)] == [{orders.id}]


def test_a_failed_function_stops_only_what_reads_it(sales: PipelineLake) -> None:
    def fails(_: dict[str, pa.Table]) -> pa.Table:
        raise InvalidArgument("the function failed: big.py, line 6: no", key="spark.code")

    sales.queries["other"] = "SELECT id FROM orders"
    sales.functions = LocalFunctions({"big": fails})
    outcome = sales.run()
    assert outcome.failures == {
        "sales.big": "the function failed: big.py, line 6: no",
        "sales.totals": "skipped, because sales.big failed",
    }
    assert outcome.changed == 1


def test_functions_run_only_if_the_operator_allows_them(sales: PipelineLake) -> None:
    sales.functions = None
    wanted = "this server runs none: its operator can allow them with the setting pipelines.python.enabled=true"
    assert wanted in sales.actions()["big"]
    assert wanted in sales.run().failures["sales.big"]


def test_functions_of_owners_under_any_policy_do_not_run(sales: PipelineLake) -> None:
    other = sales.lake.create("unrelated", sales.table("orders").handle.schema.arrow)
    spec = v1.PolicySpec(display_name="eu only", subjects=["user:ann"], objects=[other.table.resource_id])
    spec.row_filter.predicate = "region = 'eu'"
    policies.calls(lambda *_: []).create(sales.lake.home, v1.CreatePolicyRequest(spec=spec))
    sales.realm = owner_realm(sales.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    message = sales.run().failures["sales.big"]
    assert message.startswith("a policy restricts what the owner of the pipeline, ann, sees, and Python functions")
    assert sales.functions is not None
    assert sales.functions.calls == []
    sales.realm = owner_realm(sales.lake.home, v1.PipelineOwner(subject="bob", roles=["administrator"]))
    assert sales.run().failures == {}


def test_functions_read_no_views(sales: PipelineLake) -> None:
    sql = [v1.ViewSql(sql="SELECT * FROM orders", dialect="spark")]
    sales.lake.factory.view("v", sql_definitions=sql)
    sales.queries = {"big.py": BIG.replace("orders", "v")}
    assert "sales.v, which sales.big reads, is a view" in sales.run().failures["sales.big"]
