"""A real server whose disk, database, object store, clock or network fails for a while, and a client that keeps writing.

The rule for every disturbance: a statement succeeds or fails with an error that says so, no statement is half done, what was
acknowledged is there afterwards, the server works again without a restart, and `skiway check` finds no defects.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.tables import SCHEMA, Doors, connected, rows
from runtime.servers import Server, eventually, skiway, started
from skiway.errors import Internal, SkiwayError

NAME = "s.t"


@dataclass
class Writer:
    """Inserts one row at a time, and remembers which were acknowledged, and the errors of the others."""

    doors: Doors
    acknowledged: list[int] = field(default_factory=list)
    attempted: int = 0
    errors: list[SkiwayError] = field(default_factory=list)

    def insert(self) -> bool:
        """Insert the next row, and return whether that succeeded."""
        self.attempted += 1
        try:
            self.doors.db.insert(NAME, rows(self.attempted))
        except SkiwayError as error:
            if isinstance(error, Internal):  # a disturbance is not a fault of the server
                raise
            self.errors.append(error)
            return False
        self.acknowledged.append(self.attempted)
        return True

    def insert_until_it_works(self, within_s: float = 60) -> None:
        eventually(self.insert, within_s=within_s)

    def check(self) -> None:
        """Check that acknowledged rows are there, once each, and no row that was never sent."""
        found = self.doors.db.scan(NAME).read_all()["id"].to_pylist()
        assert len(found) == len(set(found)), "a row was written twice"
        assert set(self.acknowledged) <= set(found) <= set(range(1, self.attempted + 1))


@dataclass(frozen=True)
class Disturbed:
    """A server, its clients, and the place of its stores."""

    server: Server
    home: Path
    settings: Sequence[str]
    writer: Writer

    @property
    def doors(self) -> Doors:
        return self.writer.doors

    def check(self) -> None:
        """Check that the server still runs and works, and that its stores have no defects."""
        assert self.server.process.poll() is None, "the server must survive the disturbance"
        self.writer.insert_until_it_works()
        self.writer.check()
        done = skiway("check", "--home", self.home, *self.settings)
        assert (done.returncode, done.stdout) == (0, ""), f"{done.stdout}\n{done.stderr}"
        assert "no defects" in done.stderr


@contextmanager
def disturbed(home: Path, *settings: str) -> Iterator[Disturbed]:
    """Start a server with a table of one row. At the end of the block, everything is checked."""
    arguments = [part for each in settings for part in ("--set", each)]
    with started(home, *arguments) as server, connected(server.addresses) as doors:
        doors.db.create_schema("s")
        doors.db.create_table(NAME, SCHEMA)
        writer = Writer(doors)
        assert writer.insert()
        made = Disturbed(server, home, arguments, writer)
        yield made
        made.check()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of this size, mounted in `folder`."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"needs permission to mount a file system; run as root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only for a while. Files that are already open for writing stay so."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Write a file until the disk is full, and return it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return filler
