"""The stores, warehouse and home of a server under test, opened by the server and by the test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from skiway.config import Settings
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.runtime.gc.sweeps import once_round
from skiway.security import SecretsStore, open_secrets
from skiway.storage import Stores, open_stores, utc_now


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the stores of one world are, and a folder for what servers write."""

    pointers: str
    blobs: str
    folder: Path

    @property
    def secrets(self) -> SecretsStore:
        """The secrets store of the servers' home."""
        return open_secrets((self.folder / "home" / "secrets").as_uri())

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse of the servers' home."""
        return Warehouse.at(str(self.folder / "home" / "warehouse"))

    def secret_files(self) -> int:
        """How many secrets are kept."""
        return len(list((self.folder / "home" / "secrets").glob("*/*/*/*")))

    def settings(self, *more: str) -> list[str]:
        return [
            part for each in (f"kv.url={self.pointers}", f"blob.url={self.blobs}", *more) for part in ("--set", each)
        ]


def opened(deployment: Deployment, *, ahead_s: float = 0.0) -> Stores:
    """The stores of `ground`, as somebody sees them whose clock is ahead."""
    return open_stores(deployment.pointers, deployment.blobs, clock=lambda: later(ahead_s))


def later(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)


def collected(deployment: Deployment, *, ahead_s: float = 3600.0) -> set[str]:
    """Gc goes once round, after everything that expires has expired; what it removed."""
    with opened(deployment, ahead_s=ahead_s) as stores:
        rounds = once_round(
            stores,
            deployment.secrets,
            Settings().gc,
            dry_run=False,
            warehouse=deployment.warehouse,
            clock=lambda: later(ahead_s),
        )
        sweeps = [done for _, done in rounds]
    assert [done.damaged for done in sweeps if done.damaged] == []
    return {name for done in sweeps for name in done.removed}
