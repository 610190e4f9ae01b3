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
    """The URLs of the stores of a server, and a folder for what servers write."""

    pointers: str
    blobs: str
    folder: Path

    @property
    def secrets(self) -> SecretsStore:
        """The secrets store in the home of the servers."""
        return open_secrets((self.folder / "home" / "secrets").as_uri())

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse in the home of the servers."""
        return Warehouse.at(str(self.folder / "home" / "warehouse"))

    def secret_files(self) -> int:
        """The number of stored secrets of connectors."""
        return len(list((self.folder / "home" / "secrets").glob("*/*/connectors/*")))

    def settings(self, *more: str) -> list[str]:
        return [
            part for each in (f"kv.url={self.pointers}", f"blob.url={self.blobs}", *more) for part in ("--set", each)
        ]


def open_deployment(deployment: Deployment, *, ahead_s: float = 0.0) -> Stores:
    """The stores of `deployment`, as a process sees them whose clock is `ahead_s` seconds ahead."""
    return open_stores(deployment.pointers, deployment.blobs, clock=lambda: now_plus(ahead_s))


def now_plus(seconds: float) -> datetime:
    return utc_now() + timedelta(seconds=seconds)


def collect(deployment: Deployment, *, ahead_s: float = 3600.0) -> set[str]:
    """Run gc once, after everything that expires has expired, and return what it removed."""
    with open_deployment(deployment, ahead_s=ahead_s) as stores:
        results = once_round(
            Settings(),
            stores,
            deployment.secrets,
            dry_run=False,
            warehouse=deployment.warehouse,
            clock=lambda: now_plus(ahead_s),
        )
        pages = list(results)
    assert [page.error for page in pages if page.error] == []
    reports = [page.result for page in pages]
    assert [report.damaged for report in reports if report.damaged] == []
    return {name for report in reports for name in (*report.removed, *report.files)}
