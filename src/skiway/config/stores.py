"""The URLs and options that open the configured stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from skiway.config.fields import Secret
from skiway.config.loading import problems
from skiway.config.settings import Settings
from skiway.errors import InvalidArgument


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
            return {f"aws_{name}": value for name, value in _credentials(settings).items()}
        case _:
            return _revealed(password=settings.kv.password)


def _blob_options(settings: Settings, url: str) -> dict[str, str]:
    return _credentials(settings) if urlsplit(url).scheme == "s3" else {}


def _credentials(settings: Settings) -> dict[str, str]:
    aws = settings.storage.aws
    return _revealed(
        access_key_id=aws.access_key_id, secret_access_key=aws.secret_access_key, session_token=aws.session_token
    )


def _revealed(**secrets: Secret | None) -> dict[str, str]:
    return {name: secret.reveal() for name, secret in secrets.items() if secret is not None}


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
