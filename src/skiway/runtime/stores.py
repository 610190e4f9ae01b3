"""The home directory of a server, and its stores as configured: pointers, blobs and secrets.

Only the owner may read the home directory, because it contains secrets, tokens and data.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from skiway.config import FILE_NAME, Settings, store_urls
from skiway.errors import InvalidArgument, PreconditionFailed, Unavailable
from skiway.metastore.migrations import STEPS, require_usable
from skiway.security import SecretsStore
from skiway.security.secrets.files import KEY_FILE
from skiway.security.secrets.opening import open_secrets
from skiway.storage import Stores, open_blobs, open_pointers
from skiway.storage.blobs.cache import CachedBlobs
from skiway.telemetry.metrics import Metrics, observe_caches, store_calls

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


def stores_in_memory(settings: Settings, home: Path) -> list[str]:
    """The stores that other processes cannot share, by the names of their settings."""
    urls = store_urls(settings, home)
    stores = {"kv": urls.pointers, "blob": urls.blobs, "secrets": settings.secrets.backend}
    return [name for name, url in stores.items() if url.startswith("memory")]


def secrets_of(settings: Settings) -> SecretsStore:
    """The secrets store: encrypted files in the home directory, AWS Secrets Manager, or memory."""
    match settings.secrets.backend:
        case "memory":
            return open_secrets("memory://")
        case "file":
            directory = settings.secrets.file.directory
            if directory is None:
                raise InvalidArgument("secrets.backend file requires secrets.file.directory: set a directory")
            return open_secrets(directory.absolute().as_uri(), options=_keys(settings))
        case "aws":
            return open_secrets(_aws_url(settings), options=_aws_credentials(settings))


def _keys(settings: Settings) -> dict[str, str]:
    file = settings.secrets.file
    given = {"key_file": file.key_file and str(file.key_file), "keys": file.keys and file.keys.reveal()}
    return {name: value for name, value in given.items() if value}


def _aws_url(settings: Settings) -> str:
    chosen = {"region": settings.storage.aws.region, "role_arn": settings.secrets.aws.role_arn}
    parameters = urlencode({name: value for name, value in chosen.items() if value})
    return f"aws://{settings.secrets.aws.prefix}{f'?{parameters}' if parameters else ''}"


def _aws_credentials(settings: Settings) -> dict[str, str]:
    aws = settings.storage.aws
    given = {
        "aws_access_key_id": aws.access_key_id,
        "aws_secret_access_key": aws.secret_access_key,
        "aws_session_token": aws.session_token,
    }
    return {name: secret.reveal() for name, secret in given.items() if secret is not None}


@contextmanager
def stores_of(
    settings: Settings, home: Path, *, metrics: Metrics | None = None, any_format: bool = False
) -> Iterator[Stores]:
    """The pointer and blob stores, with a cache of blobs.

    The home directory is created if it does not exist, and closed to other users. Raises PreconditionFailed if the store
    must be migrated before a server can use it, unless `any_format`.
    """
    prepare_home(settings, home)
    urls, on_call = store_urls(settings, home), store_calls(metrics) if metrics is not None else None
    with ExitStack() as parts:
        pointers = parts.enter_context(open_pointers(urls.pointers, on_call=on_call, options=urls.pointer_options))
        blobs = parts.enter_context(open_blobs(urls.blobs, on_call=on_call, options=urls.blob_options))
        cache = CachedBlobs(blobs, max_blobs=settings.metadata.graph.cache_max_size)
        if metrics is not None:
            observe_caches(metrics, {"metadata.graph": cache.stats})
        stores = Stores(pointers, cache)
        if not any_format:
            require_usable(stores, STEPS)
        yield stores
