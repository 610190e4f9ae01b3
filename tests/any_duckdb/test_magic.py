"""`%sql` in a notebook: IPython itself runs the lines and cells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from any_duckdb.conftest import Locations
from skiway.duckdb import LakeConnection
from skiway.errors import InvalidArgument

pytest.importorskip("IPython", reason="IPython is missing: make setup")
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def notebook(
    lake: LakeConnection, servers: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InteractiveShell]:
    """An IPython with the magic, whose server is that of the environment."""
    lake.sql("CREATE TABLE lake.s.t AS SELECT i AS id, 'n' || i AS name FROM range(5) r(i)")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("SKIWAY_SERVER", servers.lake.removeprefix("grpc://"))
    monkeypatch.delenv("SKIWAY_TOKEN", raising=False)
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_line_magic("load_ext", "skiway.duckdb")
    yield shell
    shell.run_line_magic("unload_ext", "skiway.duckdb")


def run(notebook: InteractiveShell, cell: str) -> Any:
    """The result of a cell, which may not fail."""
    done = notebook.run_cell(cell, store_history=False)
    done.raise_error()
    return done.result


def test_lines_and_cells_return_relations(notebook: InteractiveShell) -> None:
    assert run(notebook, "%sql SELECT name FROM lake.s.t WHERE id = 3").fetchall() == [("n3",)]
    assert run(notebook, "rows = %sql SELECT {'a': id} AS s FROM lake.s.t WHERE id = 1\nrows").fetchall() == [
        ({"a": 1},)
    ]
    assert run(notebook, "%%sql\nUSE lake.s;\nSELECT count(*)\nFROM t").fetchall() == [(5,)]
    assert run(notebook, "%sql SELECT max(id) FROM t").fetchall() == [(4,)]  # the same connection
    assert run(notebook, "%%sql found\nSELECT id FROM t WHERE id > 2") is None
    assert sorted(notebook.user_ns["found"].fetchall()) == [(3,), (4,)]
    assert run(notebook, "%sql CREATE TABLE lake.s.u (id BIGINT)") is None


def test_variables_of_the_notebook_are_tables(notebook: InteractiveShell) -> None:
    notebook.push({"new": pa.table({"id": [7], "name": ["x"]})})
    assert run(notebook, "%sql INSERT INTO lake.s.t FROM new").fetchall() == [(1,)]
    assert run(notebook, "%sql SELECT t.id FROM lake.s.t JOIN new USING (id)").fetchall() == [(7,)]


def test_servers_are_chosen_by_their_address(notebook: InteractiveShell, servers: Locations) -> None:
    assert run(notebook, f"%sql {servers.seen}/seen") is None
    assert run(notebook, "%sql SELECT count(*) FROM seen.s.numbers").fetchall() == [(1000,)]
    assert run(notebook, f"%%sql {servers.lake} found\nSELECT count(*) FROM lake.s.t") is None
    assert notebook.user_ns["found"].fetchall() == [(5,)]


def test_the_token_is_that_of_the_environment(
    notebook: InteractiveShell, servers: Locations, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setenv("SKIWAY_TOKEN", "secret")
    monkeypatch.setattr("skiway.duckdb.magic.connect", lambda address, *, token: given.append((address, token)))
    run(notebook, f"%sql {servers.lake}")
    assert given == [(servers.lake, "secret")]


@pytest.mark.parametrize("cell", ["%sql", "%%sql\n \n", "%%sql two words\nSELECT 1", "%%sql 1x\nSELECT 1"])
def test_wrong_use_is_explained(notebook: InteractiveShell, cell: str) -> None:
    with pytest.raises(InvalidArgument, match=r"no statement|names no variable"):
        run(notebook, cell)


def test_importing_the_package_imports_no_ipython() -> None:
    program = "import sys, skiway.duckdb, skiway.duckdb.magic; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
