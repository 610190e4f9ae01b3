"""Variables, macros and targets in the files of a pipeline."""

from __future__ import annotations

import pytest
import yaml

from skiway.cli.lake.templates import rendered
from skiway.errors import InvalidArgument
from skiway.metastore.pipelines.projects import read_project

HEAD = """name: sales
catalog: lake
namespace: shop
vars: {least: 2}
targets:
  dev: {namespace: sandbox, vars: {least: 0}}
"""
FILES = {
    "pipeline.yml": HEAD,
    "macros/money.sql": "{% macro cents(column) %}CAST(ROUND({{ column }} * 100) AS BIGINT){% endmacro %}",
    "orders.sql": "-- {{ target.name }}\nSELECT {{ cents('price') }} AS price FROM raw WHERE n > {{ var('least') }}",
    "plain.sql": "SELECT 1 AS x",
    "code.py": "x = '{{ not a template }}'",
}


def test_variables_and_macros_are_rendered() -> None:
    found = rendered(FILES)
    assert found["orders.sql"] == "-- \nSELECT CAST(ROUND(price * 100) AS BIGINT) AS price FROM raw WHERE n > 2"
    assert (found["plain.sql"], found["code.py"]) == (FILES["plain.sql"], FILES["code.py"])
    assert yaml.safe_load(found["pipeline.yml"]) == {"name": "sales", "catalog": "lake", "namespace": "shop"}
    del found["code.py"]
    assert sorted(read_project(found).tables) == ["shop.orders", "shop.plain"]


def test_a_target_has_its_own_name_place_and_variables() -> None:
    found = rendered(FILES, target="dev", variables={"least": 7})
    assert yaml.safe_load(found["pipeline.yml"])["name"] == "sales_dev"
    assert yaml.safe_load(found["pipeline.yml"])["namespace"] == "sandbox"
    assert found["orders.sql"].startswith("-- dev")
    assert found["orders.sql"].endswith("n > 7")
    assert rendered(FILES, target="dev")["orders.sql"].endswith("n > 0")


def test_files_without_templates_stay_as_they_are() -> None:
    files = {"pipeline.yml": "# mine\nname: a\ncatalog: lake\nnamespace: n\n", "a.sql": "SELECT 1 AS x"}
    assert rendered(files) == files


@pytest.mark.parametrize(
    ("changes", "target", "message"),
    [
        ({}, "prod", "pipeline.yml: there is no target prod; there is dev"),
        (
            {"a.sql": "SELECT\n{{ var('most') }}"},
            "",
            "a.sql, line 2: the template cannot be rendered: there is no variable 'most'",
        ),
        (
            {"a.sql": "SELECT\n\n{{ unknown }}"},
            "",
            "a.sql, line 3: the template cannot be rendered: 'unknown' is undefined",
        ),
        ({"a.sql": "SELECT 1\n{% if %}"}, "", "a.sql, line 2: the template is not valid"),
        ({"macros/b.sql": "{% macro x() %}"}, "", "macros/b.sql, line 1: the template is not valid"),
        (
            {"a.sql": "{{ ''.__class__.__mro__ }}"},
            "",
            "a.sql, line 1: the template cannot be rendered: access to attribute",
        ),
        ({"pipeline.yml": HEAD.replace("vars: {least: 0}", "owner: me")}, "dev", "target dev sets 'owner'"),
        ({"pipeline.yml": HEAD.replace("{least: 2}", "3")}, "", "vars must be a mapping"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(changes: dict[str, str], target: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        rendered(FILES | changes, target=target)
    assert message in error.value.message


def test_the_server_does_not_render_templates() -> None:
    with pytest.raises(InvalidArgument, match=r"pipeline\.yml: there is no field 'vars'"):
        read_project({key: FILES[key] for key in ("pipeline.yml", "plain.sql")})
