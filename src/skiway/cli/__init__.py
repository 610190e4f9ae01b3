"""The `skiway` command. A module is imported when its command runs, so that help is printed at once."""

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
