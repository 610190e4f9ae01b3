"""The home directory of a server: only its owner may read it, because it contains secrets, tokens and data."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skiway.config import FILE_NAME, Settings
from skiway.errors import PreconditionFailed, Unavailable
from skiway.security.secrets.files import KEY_FILE

__all__ = ["OTHERS", "prepare_home"]

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of all users but the owner."""

log = logging.getLogger("skiway.runtime")


def prepare_home(settings: Settings, home: Path) -> None:
    """Create the home directory, or take away the permissions of other users in an existing one.

    A closed home also protects the files in it, so they are not examined.
    Raises PreconditionFailed if it belongs to another user, so that its permissions cannot be changed.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"the home directory {home} cannot be created: {error.strerror}; choose another with --home"
        ) from error
    if home.stat().st_mode & OTHERS:
        for path in _private(settings, home):
            _close(path)
        log.warning("other users of this machine could access %s: took away their permissions", home)


def _private(settings: Settings, home: Path) -> Iterator[Path]:
    """The existing files and folders that only the owner may access.

    The key file of the secrets is not among them: the server does not start if other users could read it.
    """
    yield home
    folders = (settings.secrets.file.directory, settings.audit.directory)
    files = [home / name for name in (FILE_NAME, "pointers.db", "pointers.db-wal", "pointers.db-shm", "blobs")]
    for place in filter(None, (*files, settings.auth.tokens.file, *folders)):
        if place.absolute().is_relative_to(home.absolute()) and place.exists():
            yield place
            if place in folders:
                yield from (each for each in place.iterdir() if each.name != KEY_FILE)


def _close(path: Path) -> None:
    found = path.stat()
    if not found.st_mode & OTHERS:
        return
    if found.st_uid != os.geteuid():
        raise PreconditionFailed(
            f"other users of this machine can access {path}, and it does not belong to the user of this process: run "
            f"`chmod go= {path}` as its owner, or choose another home with --home",
            key="home.exposed",
        )
    path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
