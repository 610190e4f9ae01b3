"""The `skiway` command.

`app` declares all commands; each imports its code when it runs, so that `--help` is fast.
"""

from skiway.cli.app import main

__all__ = ["main"]
