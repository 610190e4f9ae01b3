"""The home directory of a server, and its stores as configured: pointers, blobs and secrets.

Only the owner may read the home directory, because it contains secrets, tokens and data.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from skiway.config import FILE_NAME, Settings
from skiway.config.loading import problems
from skiway.errors import InvalidArgument, PreconditionFailed, Unavailable
from skiway.metastore.migrations import STEPS, require_usable
from skiway.security import SecretsStore, open_secrets
from skiway.security.secrets.files import KEY_FILE
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


@dataclass(frozen=True, slots=True)
class StoreUrls:
    """The arguments that open both stores: URLs without secrets, and options, which may be secret."""

    pointers: str
    blobs: str
    pointer_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    blob_options: Mapping[str, str] = field(default_factory=dict, repr=False)


def store_urls(settings: Settings, home: Path | None) -> StoreUrls:
    """The URLs and options of both stores. Embedded stores live in `home`: the file `pointers.db`, the directory `blobs`."""
    for problem in problems(settings, frozenset()):
        if problem.key.startswith(("kv.", "blob.")):
            raise InvalidArgument(f"{problem.key} is invalid: {problem.reason}", key="config.invalid")
    pointers = _with_parameters(settings.kv.url or _pointers(settings, home), settings)
    blobs = _with_parameters(settings.blob.url or _blobs(settings, pointers, home), settings)
    return StoreUrls(
        pointers,
        blobs,
        pointer_options=_pointer_options(settings, pointers),
        blob_options=_blob_options(settings, blobs),
    )


def _pointers(settings: Settings, home: Path | None) -> str:
    match settings.kv.backend:
        case "memory":
            return "memory://"
        case "dynamodb":
            return f"dynamodb://{settings.kv.table}"
        case _:
            return f"sqlite:///{_inside(home, 'pointers.db', 'kv.url')}"


def _blobs(settings: Settings, pointers: str, home: Path | None) -> str:
    bucket = settings.blob.s3
    match settings.blob.backend or _default_backend(pointers):
        case "memory":
            return "memory://"
        case "s3":
            return f"s3://{bucket.bucket}/{(bucket.prefix or '').strip('/')}"
        case _:
            return _inside(home, "blobs", "blob.url").as_uri()


def _default_backend(pointers: str) -> str:
    return "memory" if urlsplit(pointers).scheme == "memory" else "file"


def _inside(home: Path | None, name: str, key: str) -> Path:
    if home is None:
        raise InvalidArgument(f"{name} needs a home directory: give one, or set {key}", key="config.home")
    if "?" in str(home.absolute()):
        raise InvalidArgument(
            f"the path of the home directory {home} contains a ?: choose another directory", key="config.home"
        )
    return home.absolute() / name


def _pointer_options(settings: Settings, url: str) -> dict[str, str]:
    match urlsplit(url).scheme:
        case "memory" | "sqlite":
            return {}
        case "dynamodb":
            return settings.storage.aws.credentials("aws_")
        case _:
            return {} if settings.kv.password is None else {"password": settings.kv.password.reveal()}


def _blob_options(settings: Settings, url: str) -> dict[str, str]:
    return settings.storage.aws.credentials() if urlsplit(url).scheme == "s3" else {}


def _with_parameters(url: str, settings: Settings) -> str:
    """The URL of a store in AWS with the region, endpoint and style of the settings, unless the URL has its own."""
    aws, parts = settings.storage.aws, urlsplit(url)
    match parts.scheme:
        case "s3":
            style = None if aws.s3.path_style_access else "true"
            values = {"region": aws.region, "endpoint": aws.s3.endpoint, "virtual_hosted_style_request": style}
        case "dynamodb":
            create = None if settings.kv.auto_create else "false"
            values = {"region": aws.region, "endpoint": aws.dynamodb.endpoint_override, "create": create}
        case _:
            return url
    own = dict(parse_qsl(parts.query, keep_blank_values=True))
    query = urlencode({name: value for name, value in values.items() if value is not None} | own)
    return f"{url.partition('?')[0]}{f'?{query}' if query else ''}"


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
            return open_secrets(_aws_url(settings), options=settings.storage.aws.credentials("aws_"))


def _keys(settings: Settings) -> dict[str, str]:
    file = settings.secrets.file
    given = {"key_file": file.key_file and str(file.key_file), "keys": file.keys and file.keys.reveal()}
    return {name: value for name, value in given.items() if value}


def _aws_url(settings: Settings) -> str:
    chosen = {"region": settings.storage.aws.region, "role_arn": settings.secrets.aws.role_arn}
    parameters = urlencode({name: value for name, value in chosen.items() if value})
    return f"aws://{settings.secrets.aws.prefix}{f'?{parameters}' if parameters else ''}"


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
