"""The command `skiway`. Nothing heavy is imported before a command needs it, so that help is there at once."""

from skiway.cli.app import main

__all__ = ["main"]
