"""The `skiway` command.

`app` declares all commands; each imports its code when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import sys

from skiway import extras

__all__ = ["main"]


def main() -> None:
    """Run the command line. Without the extra `lake`, explain which extra to install for what."""
    try:
        import skiway.extras.lake  # noqa: F401
    except extras.MissingExtra:
        sys.exit(f"skiway: {extras.overview()}")
    from skiway.cli.app import main as run

    run()
