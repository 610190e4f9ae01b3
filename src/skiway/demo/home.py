"""Where a demo lives, and how far it is made.

A file says that a directory is a demo's, and in which layout. A directory that is not empty and has no such file is
somebody else's, and is left alone. While one process makes a demo, no other does.
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

__all__ = ["LAYOUT", "DemoHome"]

LAYOUT: Final = 1
"""What is made, and where: another number is another demo, which this program can neither serve nor mend."""

_FILE: Final = "demo.json"
_LOCK: Final = "demo.lock"


@dataclass(frozen=True, slots=True)
class _Facts:
    layout: int
    home: str
    complete: bool


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The home of a demo."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> DemoHome:
        """The demo at `path`, which is claimed if nothing is there yet."""
        home = cls(path.absolute())
        facts = home._facts()
        if facts is not None:
            home._check(facts)
            return home
        others = home._others()
        if others:
            raise PreconditionFailed(
                f"{path} is not the home of a demo: it holds {', '.join(sorted(others)[:3])}; choose another directory with "
                "--home, or serve this one with: skiway serve --home",
                key="demo.home.taken",
            )
        home._write(complete=False)
        return home

    @property
    def sources(self) -> Path:
        """Where the sources are, beside the server's own files."""
        return self.path / "sources"

    @property
    def is_complete(self) -> bool:
        """Whether all of it was made."""
        facts = self._facts()
        return facts is not None and facts.complete

    def completed(self) -> None:
        """Write down that all of it was made."""
        self._write(complete=True)

    @contextmanager
    def making(self) -> Iterator[None]:
        """While inside, this process makes the demo, and no other one."""
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreconditionFailed(
                    f"another process is making the demo in {self.path}: wait until it is done, or choose another directory "
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
                f"{self.path / _FILE} is not what a demo writes there: remove the directory, or choose another one with "
                "--home",
                key="demo.home.unknown",
            ) from error

    def _check(self, facts: _Facts) -> None:
        if facts.layout != LAYOUT:
            raise PreconditionFailed(
                f"the demo in {self.path} was made by {'a newer' if facts.layout > LAYOUT else 'an older'} version of "
                f"Skiway (layout {facts.layout}, and this one makes {LAYOUT}): remove the directory, or choose another one "
                "with --home",
                key="demo.home.layout",
            )
        if facts.home != str(self.path):
            raise PreconditionFailed(
                f"the demo in {self.path} was made as {facts.home}, and its tables name their files by that path: move it "
                "back, or remove it, or choose another directory with --home",
                key="demo.home.moved",
            )

    def _others(self) -> list[str]:
        """What is there and not the demo's."""
        try:
            return [each.name for each in self.path.iterdir() if not each.name.startswith(f".{_FILE}.")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be the demo's home: {error.strerror}; choose --home") from error

    def _write(self, *, complete: bool) -> None:
        """The file appears whole or not at all."""
        beside = self.path / f".{_FILE}.{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(asdict(_Facts(LAYOUT, str(self.path), complete))) + "\n")
            beside.replace(self.path / _FILE)
        except OSError as error:
            raise Unavailable(
                f"the demo cannot be kept in {self.path}: {error.strerror}; choose another directory with --home"
            ) from error
