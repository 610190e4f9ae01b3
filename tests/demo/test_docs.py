"""The page "Five minutes" is accurate: its statements, programs and commands run on a demo.

`tests/cli/test_guides.py` runs the part about a new lake.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.demos import Serving
from runtime.servers import environment, launch
from skiway.client import Metastore
from skiway.demo.build import SOURCES
from skiway.demo.output import QUERIES

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs("java", "spark")]

PAGE = (Path(__file__).parents[2] / "docs" / "five-minutes.md").read_text().partition("## Your own lake")[0]
STATEMENTS = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
((PROGRAM, PRINTED),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
CLEANUP = "DROP TABLE IF EXISTS lake.mine.black_trails; DROP SCHEMA IF EXISTS lake.mine;"
COMMANDS = re.findall(r"^skiway (.*)$", PAGE, re.MULTILINE)


def skiway(served: Serving, *arguments: str, at: Path | None = None) -> str:
    """The output of a command run against the demo."""
    location = served.location().removeprefix("grpc://")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with launch(*arguments, env=environment(SKIWAY_SERVER=location), cwd=at, **pipes) as run:
        out, err = run.communicate(timeout=500)
    assert run.returncode == 0, out + err
    return out


def test_queries_on_the_page_are_those_of_the_demo() -> None:
    assert [each.strip() for each in STATEMENTS[1:4]] == [query.sql for query in QUERIES]


def test_every_table_is_on_the_page() -> None:
    tables = {f"{schema}.{table}" for each in SOURCES for schema, names in each.tables.items() for table in names}
    assert {name for name in tables if f"`{name}`" not in PAGE} == set()


def test_every_code_block_is_run() -> None:
    blocks = re.findall(r"^```(\w+)$", PAGE, re.MULTILINE)
    assert (blocks.count("sql"), blocks.count("python"), blocks.count("text")) == (len(STATEMENTS), 1, 1)
    assert re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) == [
        "make demo\n",
        "".join(f"skiway {each}\n" for each in COMMANDS),
    ]


def test_statements_programs_and_commands_run(
    served: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "name": ["Ada", "Grace"]}), data / "people.parquet")
    attach, *statements = STATEMENTS
    assert attach.replace("grpc://127.0.0.1:50051", served.location()).splitlines()[1] in served.printed()
    printed = re.findall(r"^   (?:geometry|write) +(.*;)$", served.printed(), re.MULTILINE)
    assert len(printed) == 2
    shown = skiway(served, "sql", CLEANUP + "\n".join([*printed, *statements]))
    assert shown.rstrip().endswith("updated 1 row")
    (rest,) = re.findall(r"(http://\S+/iceberg)", served.printed())
    program = PROGRAM.replace("grpc://127.0.0.1:50051", served.location())
    exec(program.replace("http://127.0.0.1:8181/iceberg", rest), {})
    assert capsys.readouterr().out == PRINTED
    outputs = [skiway(served, *each.split(), at=tmp_path) for each in COMMANDS]
    with Metastore(served.location().removeprefix("grpc://")) as lake:
        lake.connectors.delete("files")
        lake.tables.delete("lake.files.people")
    assert "name" in outputs[-1]
