"""The page about dbt and the project in `examples/dbt` agree. `make live` runs both of them."""

from __future__ import annotations

import re

import yaml

from examples.pages import PROJECT

PAGE = (PROJECT / "docs" / "dbt.md").read_text()
EXAMPLE = PROJECT / "examples" / "dbt"


def test_profile_on_the_page_is_that_of_the_example() -> None:
    (profile,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert profile == (EXAMPLE / "profiles.yml").read_text()
    assert yaml.safe_load(profile)["shop"]["outputs"]["lake"]["attach"][0]["alias"] == "lake"


def test_versions_are_pinned() -> None:
    required = (EXAMPLE / "requirements.txt").read_text().split()
    assert [each.split("==")[0] for each in required if "==" in each] == ["dbt-core", "dbt-duckdb", "duckdb"]
    (described,) = re.findall(r"dbt-core (\S+) needs", PAGE)
    assert required[0].startswith(f"dbt-core=={described}.")
