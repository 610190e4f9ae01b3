"""The page about Flight SQL matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import ByToken, Lake, opened_lake

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "flight-sql.md").read_text()


def test_example_prints_the_shown_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known = ByToken.authenticate
    monkeypatch.setattr(
        ByToken,
        "authenticate",
        lambda self, headers: known(self, {"authorization": "Bearer reader"} if "secret-token" in str(headers) else {}),
    )
    with opened_lake(tmp_path) as lake:
        _add_people(lake)
        exec(example.replace("grpc://127.0.0.1:50051", lake.location), {})
    assert f"```text\n{capsys.readouterr().out}```" in PAGE


def _add_people(lake: Lake) -> None:
    lake.catalog("lake")
    with lake.client("lake") as owner:
        owner.create_schema("sales")
        owner.create_table("sales.people", pa.schema({"id": pa.int64(), "name": pa.string()}))
        owner.insert("sales.people", pa.table({"id": [1, 2], "name": ["Ada", "Grace"]}))


def test_every_error_is_on_the_page() -> None:
    modules = [*(PROJECT / "src/skiway/flightsql").glob("*.py"), PROJECT / "src/skiway/lake/service.py"]
    keys = {key for module in modules for key in re.findall(r'key="([\w]+\.[\w]+)"', module.read_text())}
    assert len(keys) > 6
    assert {key for key in keys if f"`{key}`" not in PAGE} == set()
