"""`skiway worker`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from skiway.cli.settings_of import settings_of
from skiway.config import Settings, store_urls
from skiway.errors import InvalidArgument

__all__ = ["work"]


def work(home: Path, file: Path | None, given: Sequence[str]) -> None:
    """Work on jobs until a signal ends it; what is under way then is given back."""
    settings = settings_of(home, file, given)
    if not home.is_dir():
        raise InvalidArgument(f"there is no home {home}: name the one of your server with --home")
    _check_shared(settings, home)
    from skiway.runtime import working

    console = Console(file=sys.stderr)

    def greet() -> None:
        if console.is_terminal:
            console.print("[bold]skiway worker[/bold] waits for jobs; stop it with Ctrl-C", highlight=False)

    working.work(settings, home, on_ready=greet)


def _check_shared(settings: Settings, home: Path) -> None:
    """A worker is of use where others put jobs and keep their secrets."""
    urls = store_urls(settings, home)
    kept = {"kv": urls.pointers, "blob": urls.blobs, "secrets": settings.secrets.backend}
    for name, place in kept.items():
        if place.startswith("memory"):
            raise InvalidArgument(
                f"a worker shares its stores with servers, but {name} is kept in memory, which is one process's own: name"
                " the home and settings of your server with --home, --config and --set",
                key="worker.store.memory",
            )
