"""The directory of a demo, and whether the demo is complete.

A file marks the directory as a demo and records its layout. A non-empty directory without that file is left alone. Only one
process at a time builds a demo.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from skiway.errors import PreconditionFailed, Unavailable

LAYOUT: Final = 1
"""The version of the demo's content. A demo with another version can be neither served nor completed."""

_FILE: Final = "demo.json"
_LOCK: Final = "demo.lock"


@dataclass(frozen=True, slots=True)
class _Facts:
    layout: int
    home: str
    complete: bool


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The directory of a demo."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> DemoHome:
        """The demo at `path`. An empty or missing directory is marked as a demo."""
        home = cls(path.absolute())
        facts = home._facts()
        if facts is not None:
            home._check(facts)
            return home
        others = home._others()
        if others:
            raise PreconditionFailed(
                f"{path} is not the home of a demo: it contains {', '.join(sorted(others)[:3])}; choose another directory with "
                "--home, or serve this one with: skiway serve --home",
                key="demo.home.taken",
            )
        home._write(complete=False)
        return home

    @property
    def sources(self) -> Path:
        """The directory of the sources, next to the server's own files."""
        return self.path / "sources"

    @property
    def pipeline(self) -> Path:
        """The directory with the files of the pipeline, for people to edit."""
        return self.path / "pipelines" / "reports"

    @property
    def is_marked(self) -> bool:
        """Whether the directory is marked as a demo."""
        return (self.path / _FILE).is_file()

    @property
    def is_complete(self) -> bool:
        """Whether the build has finished."""
        facts = self._facts()
        return facts is not None and facts.complete

    def completed(self) -> None:
        """Record that the build has finished."""
        self._write(complete=True)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Prevent other processes from building the demo for the duration of the block."""
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreconditionFailed(
                    f"another process is building the demo in {self.path}: wait until it has finished, or choose another directory "
                    "with --home",
                    key="demo.home.busy",
                ) from None
            yield

    def _facts(self) -> _Facts | None:
        try:
            found = json.loads((self.path / _FILE).read_text())
            return _Facts(int(found["layout"]), str(found["home"]), found["complete"] is True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionFailed(
                f"{self.path / _FILE} is not a valid demo file: delete the directory, or choose another one with "
                "--home",
                key="demo.home.unknown",
            ) from error

    def _check(self, facts: _Facts) -> None:
        if facts.layout != LAYOUT:
            raise PreconditionFailed(
                f"the demo in {self.path} was created by {'a newer' if facts.layout > LAYOUT else 'an older'} version of "
                f"Skiway (layout {facts.layout}, expected {LAYOUT}): delete the directory, or choose another one with --home",
                key="demo.home.layout",
            )
        if facts.home != str(self.path):
            raise PreconditionFailed(
                f"the demo in {self.path} was created in {facts.home}, and its tables refer to files there: move it back, delete it, "
                "or choose another directory with --home",
                key="demo.home.moved",
            )

    def _others(self) -> list[str]:
        """The names of files that do not belong to a demo."""
        try:
            return [each.name for each in self.path.iterdir() if not each.name.startswith(f".{_FILE}.")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(
                f"{self.path} cannot be used for the demo: {error.strerror}; choose another directory with --home"
            ) from error

    def _write(self, *, complete: bool) -> None:
        """Write the file atomically."""
        draft = self.path / f".{_FILE}.{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(asdict(_Facts(LAYOUT, str(self.path), complete))) + "\n")
            draft.replace(self.path / _FILE)
        except OSError as error:
            raise Unavailable(
                f"the demo cannot be stored in {self.path}: {error.strerror}; choose another directory with --home"
            ) from error
