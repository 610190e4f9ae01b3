"""Settings that are right one by one and wrong together."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlsplit

from skiway.config.server import Grpc, Http
from skiway.config.settings import Settings
from skiway.config.sources import secret_parameters
from skiway.config.values import is_loopback

__all__ = ["Problem", "problems"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot be as it is, why, and what to do."""

    key: str
    reason: str


def problems(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    """All that is wrong. `explicit` are the keys that somebody set."""
    return chain(
        _doors(settings),
        _auth(settings),
        _pointers(settings, explicit),
        _blobs(settings, explicit),
        _urls(settings),
        _pairs(settings),
    )


def _doors(settings: Settings) -> Iterator[Problem]:
    doors: dict[str, Grpc | Http] = {"server.grpc": settings.server.grpc, "server.http": settings.server.http}
    for name, door in doors.items():
        if (door.tls.cert is None) != (door.tls.key is None):
            missing = "cert" if door.tls.cert is None else "key"
            yield Problem(f"{name}.tls.{missing}", "a certificate and its key come together: set both or none")
        if door.address is None or is_loopback(door.address):
            continue
        if door.tls.cert is None and not door.insecure:
            yield Problem(
                f"{name}.address",
                f"other machines would reach it without TLS: set {name}.tls.cert and {name}.tls.key, or listen on "
                f"127.0.0.1, or say {name}.insecure = true",
            )
        if settings.auth.mode == "dev" and not settings.auth.insecure:
            yield Problem(
                f"{name}.address",
                "other machines would reach it without authentication: set auth.mode to token or oidc, or listen on "
                "127.0.0.1, or say auth.insecure = true",
            )


def _auth(settings: Settings) -> Iterator[Problem]:
    auth = settings.auth
    if auth.mode == "token" and auth.tokens.file is None:
        yield Problem("auth.tokens.file", "auth.mode token needs it: name the file of the known tokens")
    if auth.mode != "oidc":
        return
    if auth.oidc.issuer is None and auth.oidc.public_key is None:
        yield Problem("auth.oidc.issuer", "auth.mode oidc needs it: set it, or auth.oidc.public_key")
    if auth.oidc.audience is None:
        yield Problem(
            "auth.oidc.audience", "auth.mode oidc needs it: without one, tokens for other services would be taken"
        )


def _pointers(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    kv = settings.kv
    if kv.url is None and kv.backend == "postgresql":
        yield Problem("kv.url", "kv.backend postgresql needs it: set it to postgresql://user@host/database")
    if kv.url and "kv.backend" in explicit and urlsplit(kv.url).scheme != kv.backend:
        yield Problem("kv.backend", "kv.url says something else: leave one of the two out")


def _blobs(settings: Settings, explicit: Set[str]) -> Iterator[Problem]:
    kv, blob = settings.kv, settings.blob
    pointers = urlsplit(kv.url).scheme if kv.url else kv.backend
    blobs = urlsplit(blob.url).scheme if blob.url else blob.backend
    if blobs is None and pointers not in ("memory", "sqlite"):
        yield Problem("blob.backend", f"pointers in {pointers} do not say where blobs are: set it, or blob.url")
    if blobs == "memory" and pointers != "memory":
        yield Problem(
            "blob.url" if blob.url else "blob.backend",
            f"blobs in memory are gone when the process ends, but pointers in {pointers} stay: keep both, or none",
        )
    if blob.url and "blob.backend" in explicit and blobs != blob.backend:
        yield Problem("blob.backend", "blob.url says something else: leave one of the two out")
    if blob.url is None and blob.backend == "s3" and blob.s3.bucket is None:
        yield Problem("blob.s3.bucket", "blob.backend s3 needs it: name a bucket that exists")


def _urls(settings: Settings) -> Iterator[Problem]:
    for key, url in (("kv.url", settings.kv.url), ("blob.url", settings.blob.url)):
        if url and (names := secret_parameters(url)):
            yield Problem(
                key,
                f"it carries {', '.join(names)}: secrets have settings of their own, which are never shown: "
                "storage.aws.access_key_id, storage.aws.secret_access_key, storage.aws.session_token, kv.password",
            )
    if settings.blob.url and "@" in urlsplit(settings.blob.url).netloc:
        yield Problem("blob.url", "it carries a user: set storage.aws.access_key_id and storage.aws.secret_access_key")


def _pairs(settings: Settings) -> Iterator[Problem]:
    aws, jobs = settings.storage.aws, settings.reconciler.job_store
    if (aws.access_key_id is None) != (aws.secret_access_key is None):
        missing = "access_key_id" if aws.access_key_id is None else "secret_access_key"
        yield Problem(f"storage.aws.{missing}", "an access key and its secret come together: set both or none")
    if jobs.base_backoff_ms > jobs.max_backoff_ms:
        yield Problem("reconciler.job_store.base_backoff_ms", "it is longer than reconciler.job_store.max_backoff_ms")
