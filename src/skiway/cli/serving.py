"""`skiway serve`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from skiway import __version__
from skiway.cli.calling import READY_FILE
from skiway.cli.grpc_environment import prepare_grpc
from skiway.cli.settings_of import settings_of
from skiway.config import Settings

__all__ = ["serve"]

AUTH = {
    "dev": "dev: whoever reaches it may do everything",
    "token": "tokens; make one with: skiway tokens new NAME --account default --role administrator",
    "oidc": "tokens of an identity provider",
}


def serve(home: Path, file: Path | None, given: Sequence[str], *, ready_file: Path | None) -> None:
    """Run the server until a signal ends it."""
    settings = settings_of(home, file, given)
    prepare_grpc()
    from skiway.runtime import process

    console = Console(file=sys.stderr)

    def greet(addresses: Mapping[str, str]) -> None:
        if console.is_terminal:
            console.print(banner(settings, home, addresses), soft_wrap=True)

    process.serve(settings, home, ready_file=ready_file or home / READY_FILE, on_ready=greet)


def banner(settings: Settings, home: Path, addresses: Mapping[str, str]) -> Text:
    """What a person wants to know who just started a server."""
    facts = {
        **addresses,
        "home": str(home),
        "auth": AUTH[settings.auth.mode],
        "duckdb": f"ATTACH 'lake' (TYPE airport, LOCATION '{addresses['airport']}');",
        "python": f'from skiway.client import Metastore; Metastore("{addresses["rpc"]}")',
        "stop": "Ctrl-C",
    }
    lines = [(f"\n  {name:<8}{fact}", "") for name, fact in facts.items()]
    return Text.assemble(("skiway", "bold"), f" {__version__}", *lines)
