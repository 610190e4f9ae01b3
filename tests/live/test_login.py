"""`skiway login --duckdb`: the real client stores the secret, and later sessions attach without a token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from live.clients import Client
from live.test_grants import SKIWAY, Secured, secured

__all__ = ["secured"]

PROGRAM = """#!{python}
import os, sys
os.environ.update({variables!r})
os.execv({duckdb!r}, [{duckdb!r}, "-c", {script!r}])
"""
SCRIPT = """
import sys, duckdb
session = duckdb.connect(config={{"allow_unsigned_extensions": "true"}})
for load in {loads!r}:
    session.execute(load)
for statement in sys.stdin.read().splitlines():
    if not statement.startswith(("LOAD", "INSTALL")):
        session.execute(statement)
"""


def own_duckdb(client: Client, folder: Path) -> Path:
    """A folder with a program `duckdb`, as a user of this machine has it on the path."""
    names = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    variables = {name: os.environ[f"CLIENT_{name}"] for name in names if os.environ.get(f"CLIENT_{name}")}
    folder.mkdir()
    program = folder / "duckdb"
    script = SCRIPT.format(loads=client.loads)
    duckdb = os.environ.get("DUCKDB_PYTHON", sys.executable)
    program.write_text(PROGRAM.format(python=sys.executable, variables=variables, duckdb=duckdb, script=script))
    program.chmod(0o755)
    return folder


def test_sessions_attach_with_the_secret_of_a_login(secured: Secured, tmp_path: Path) -> None:
    path = f"{own_duckdb(secured.client, tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}"
    user = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment = {**os.environ, **user, "PATH": path, "SKIWAY_SERVER": f"127.0.0.1:{secured.server.port}"}
    words = [SKIWAY, "login", "--token-file", "-", "--duckdb"]
    done = subprocess.run(
        words, input=secured.boss, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert secured.boss not in done.stdout + done.stderr
    (file,) = (tmp_path / ".duckdb" / "stored_secrets").iterdir()
    assert file.stat().st_mode & 0o077 == 0

    with secured.client.session(secured.server.attach(), variables=user) as session:
        assert session.rows("SELECT * FROM db.sales.people") == [["1", "Ada"]]

    words = [SKIWAY, "logout", "--duckdb"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not file.exists()
    with secured.client.session(variables=user) as session:
        session.run(secured.server.attach())
        assert session.run("SELECT * FROM db.sales.people").status == "error"
