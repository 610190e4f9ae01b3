"""The `skiway` command.

`app` declares all commands; each imports its code when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from skiway.foundation import extras

__all__ = ["main", "run_process"]


def main() -> None:
    """Run the command line. Without the extra `lake`, explain which extra to install for what."""
    try:
        extras.check("lake")
    except extras.MissingExtra:
        sys.exit(f"skiway: {extras.overview()}")
    from skiway.cli.app import main as run

    run()


def run_process() -> NoReturn:
    """Run the command line as a process of its own, and exit.

    A cancelled query may leave a thread of Arrow that still waits for Python. Finalizing the interpreter would abort the
    process or wait for that thread forever, so after queries the process ends without it.
    """
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if "skiway.duckdb.session" not in sys.modules or isinstance(code, str):
        sys.exit(code)  # type: ignore[arg-type]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]
