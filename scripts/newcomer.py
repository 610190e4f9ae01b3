"""Play a newcomer on a clean machine: clone, `make demo ARGS=--once`, the README's statements, `make test`; print times and sizes.

    python scripts/newcomer.py [--python python3.13] [--with-tests]

It uses a clone of the last commit in a temporary folder, a new home, and the cache of packages of this machine. With `CLIENT`, a command
that runs the SQL on its standard input in a DuckDB with the `airport` extension, the README's statements run there, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def size_mb(folder: Path) -> int:
    """The size of a folder on the disk."""
    return int(subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True).stdout.split()[0])


def timed(step: str, command: list[str], *, cwd: Path, env: Mapping[str, str], text: str | None = None) -> str:
    """Run a step, print how long it takes, and return its output. A failure ends the script."""
    began = time.monotonic()
    run = subprocess.run(command, cwd=cwd, env=dict(env), input=text, capture_output=True, text=True, check=False)
    print(f"{step:<40}{time.monotonic() - began:>8.1f} s", flush=True)
    if run.returncode:
        sys.exit(f"{step} failed:\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}")
    return run.stdout


def blocks(language: str, heading: str) -> list[str]:
    """The blocks of a section of the README."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def main() -> int:
    """Play all steps."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--python", default="python3")
    arguments.add_argument("--with-tests", action="store_true")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder, clone = Path(name), Path(name) / "skiway"
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SKIWAY"))} | {
            "HOME": name
        }
        env |= {key: os.environ[key] for key in ("UV_CACHE_DIR", "PIP_CACHE_DIR") if key in os.environ}
        env.setdefault("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
        timed("clone", ["git", "clone", "--quiet", str(ROOT), str(clone)], cwd=folder, env=env)
        make = ["make", f"PYTHON={given.python}"]
        shown = timed("make demo ARGS=--once", [*make, "demo", "ARGS=--once"], cwd=clone, env=env)
        assert "Does fresh snow sell?" in shown
        print(f"{'size of .venv':<40}{size_mb(clone / '.venv'):>8} MB")
        timed("the same again", [*make, "demo", "ARGS=--once"], cwd=clone, env=env)
        attached(clone, env)
        for number, program in enumerate(blocks("python", "An Airport server in Python"), start=1):
            timed(
                f"program {number} of the README", [str(clone / ".venv/bin/python"), "-c", program], cwd=clone, env=env
            )
        if given.with_tests:
            timed("make test", [*make, "test"], cwd=clone, env=env)
            print(f"{'size of .venv':<40}{size_mb(clone / '.venv'):>8} MB")
    return 0


def attached(clone: Path, env: Mapping[str, str]) -> None:
    """Serve the demo, measure its start, and run the README's statements, in the real client if there is one."""
    command = ["make", "demo", "ARGS=--grpc 127.0.0.1:0 --http 127.0.0.1:0"]
    began = time.monotonic()
    demo = subprocess.Popen(
        command, cwd=clone, env=dict(env), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert demo.stdout
        printed = ""
        while "write  " not in printed:
            line = demo.stdout.readline()
            assert line, "the demo ended"
            printed += line
        print(f"{'start of the demo, until it is attached':<40}{time.monotonic() - began:>8.1f} s")
        location = re.findall(r"LOCATION '(grpc://[^']+)'", printed)[-1]
        statements = blocks("sql", "Try it")[0].replace("grpc://127.0.0.1:50051", location)
        if client := os.environ.get("CLIENT"):
            timed(
                "statements of the README, real client", shlex.split(client), cwd=clone, env=os.environ, text=statements
            )
        select = statements[statements.index("SELECT") :]
        own = dict(env) | {"SKIWAY_SERVER": location.removeprefix("grpc://")}
        print(
            timed(
                "statements of the README, skiway sql",
                [str(clone / ".venv/bin/skiway"), "sql", select],
                cwd=clone,
                env=own,
            )
        )
    finally:
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(60)


if __name__ == "__main__":
    sys.exit(main())
