"""What checks find, and the checks that need no server: of the machine, and of a home and its stores."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skiway import __version__
from skiway.config import Settings
from skiway.config.server import Tls
from skiway.errors import PreconditionFailed, SkiwayError, Unsupported
from skiway.foundation.causes import cause_of
from skiway.foundation.native import chosen
from skiway.foundation.transport import Choice
from skiway.metastore.migrations import STEPS, pending_steps, store_format
from skiway.metastore.platform import store_checks
from skiway.runtime.http.door import DEFAULT_ADDRESS
from skiway.runtime.lifecycle import Announced, check_room, read_announced
from skiway.runtime.stores import OTHERS, secrets_of, store_urls
from skiway.security import TokenFile
from skiway.storage import Stores, open_blobs, open_pointers

if TYPE_CHECKING:
    from cryptography import x509
    from pyspark.sql import SparkSession

MAX_SKEW_S: Final = 5.0
"""By how much clocks may differ."""


class State(StrEnum):
    """The result of a check. A warning does not need to be acted on now."""

    ok = "ok"
    warning = "warning"
    failed = "failed"
    skipped = "skipped"


Check = Callable[[], str]
"""Returns the evidence that something works, or raises `Problem`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: the evidence and, if something is wrong, a fix."""

    check: str
    state: State
    evidence: str
    fix: str = ""


class Problem(Exception):
    """Raised by a check that finds something wrong, or that cannot run."""

    def __init__(self, evidence: str, fix: str = "", *, state: State = State.failed) -> None:
        super().__init__(evidence)
        self.evidence, self.fix, self.state = evidence, fix, state


def examine(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run the checks, one after the other."""
    for name, check in checks.items():
        try:
            yield Finding(name, State.ok, check())
        except Problem as problem:
            yield Finding(name, problem.state, problem.evidence, problem.fix)
        except SkiwayError as error:
            evidence, _, fix = error.message.partition("; ")
            if not fix:
                evidence, _, fix = error.message.partition(": ")
            detail = f" ({error.detail})" if error.detail else ""
            yield Finding(name, State.failed, f"{evidence}{detail}", fix or "see the log of the server")
        except Exception as error:  # noqa: BLE001 - a check that fails must not end the others
            if (cause := cause_of(error)) is not None:
                yield Finding(name, State.failed, f"{cause.problem} ({error})", cause.remedy)
                continue
            yield Finding(
                name, State.failed, f"{type(error).__name__}: {error}", "the check itself failed: please report it"
            )


OLDEST_PYTHON: Final = (3, 11)
EXTRAS: Final = ("", "lake", "geometry", "memory", "sql")
"""Those of a server. The first has the packages that are always needed."""


def machine_checks(*, start_spark: Callable[[], SparkSession] | None = None) -> dict[str, Check]:
    """The checks, by name. Starting Spark takes some seconds, so it is not started unless a function is given for it."""
    return {"python": python, "packages": packages, "java": java, "spark": lambda: spark(start_spark)}


def python() -> str:
    """The version of Python is supported."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise Problem(f"this is Python {found}", "install Python 3.11 or newer, and Skiway with it")
    return f"Python {found} at {sys.executable}"


def packages() -> str:
    """All packages that a server needs are installed, in supported versions."""
    wrong = list(_wrong_packages())
    if wrong:
        raise Problem("; ".join(wrong), "install them in supported versions: pip install --upgrade 'skiway[lake]'")
    return f"skiway {__version__}, and all packages that a server needs"


def _wrong_packages() -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in metadata.requires("skiway") or ():
        needed = Requirement(text)
        if needed.marker is not None and not any(needed.marker.evaluate({"extra": extra}) for extra in EXTRAS):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield f"{needed.name} is not installed"
            continue
        if not needed.specifier.contains(found, prereleases=True):
            yield f"{needed.name} is {found}, but {needed.specifier} is needed"


def java() -> str:
    """There is a Java that Spark can use."""
    from skiway.spark_jobs.java import ensure_java

    try:
        found = ensure_java()
    except PreconditionFailed as error:
        raise Problem(error.message, "install Java 17 or newer, or: pip install 'skiway[spark]'") from error
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    if shown.returncode:
        lines = shown.stderr.strip().splitlines() or [f"exit code {shown.returncode}"]
        raise Problem(f"{found} does not start: {lines[-1]}", "install Java 17 or newer, and set JAVA_HOME to it")
    return f"{shown.stderr.strip().splitlines()[0]} at {found}"


def spark(start: Callable[[], SparkSession] | None) -> str:
    """Spark is installed, and starts if there is a function for it."""
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise Problem("pyspark is not installed, so tables are not profiled", "pip install 'skiway[spark]'") from None
    if start is None:
        return f"pyspark {found} is installed; --start-spark starts it"
    session = start()
    try:
        return f"Spark {session.version} has counted {session.range(1000).count()} rows"
    finally:
        session.stop()


GIB: Final = 1 << 30
MIN_FREE: Final = 1 * GIB
LOW_FREE: Final = 10 * GIB
SOON: Final = timedelta(days=14)


def home_checks(
    settings: Settings,
    home: Path,
    *,
    ready_file: Path,
    clock: Callable[[], float] = time.time,
    free_bytes: Callable[[Path], int] = lambda place: shutil.disk_usage(place).free,
) -> dict[str, Check]:
    """The checks of a home, by name. `ready_file` is that of its server."""
    running = read_announced(ready_file)
    return {
        "home": lambda: permissions(home),
        "disk": lambda: disk(home, free_bytes),
        "pointer store": lambda: pointer_store(settings, home),
        "blob store": lambda: blob_store(settings, home),
        "secrets": lambda: secrets(settings, home),
        "tokens": lambda: tokens(settings),
        "transport": lambda: transport(settings.server.transport),
        "grpc port": lambda: port("grpc", settings.server.grpc.address, running),
        "http port": lambda: _http_port(settings.server.http.address, running),
        "grpc certificate": lambda: certificate("grpc", settings.server.grpc.tls),
        "http certificate": lambda: certificate("http", settings.server.http.tls),
        "clock": lambda: disk_clock(home, clock),
    }


def transport(configured: Choice) -> str:
    """The configured transport of gRPC is installed."""
    try:
        found = chosen(configured)
    except Unsupported as error:
        raise Problem(error.message, "install it, or set server.transport to auto") from None
    return f"gRPC is served by {found}"


def permissions(home: Path) -> str:
    """Only the owner may access the home, and it belongs to the user of the server."""
    if not home.is_dir():
        raise Problem(
            f"there is no directory {home}",
            "give the home of your server with --home; `skiway serve` creates a new one",
            state=State.skipped,
        )
    found = home.stat()
    if found.st_uid != os.geteuid():
        raise Problem(
            f"{home} belongs to another user (id {found.st_uid}, and this is {os.geteuid()})",
            "run Skiway as the owner of the home, or choose another home with --home",
        )
    if found.st_mode & OTHERS:
        raise Problem(
            f"other users of this machine can access {home} (mode {stat.S_IMODE(found.st_mode):o})",
            f"chmod go= {home}; a server does it when it starts",
            state=State.warning,
        )
    return f"{home}, mode {stat.S_IMODE(found.st_mode):o}"


def disk(home: Path, free_bytes: Callable[[Path], int]) -> str:
    """There is space for new files."""
    place = next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())
    check_room(home)
    free = free_bytes(place)
    shown = f"{free / GIB:.1f} GiB are free at {place}"
    if free < MIN_FREE:
        raise Problem(shown, "free some space or enlarge the disk: writes will fail")
    if free < LOW_FREE:
        raise Problem(shown, "free some space or enlarge the disk soon", state=State.warning)
    return shown


# -- stores ------------------------------------------------------------------------------------------------------------


@contextmanager
def _stores(settings: Settings, home: Path) -> Iterator[Stores]:
    """The stores, if they exist. To open them would create them."""
    urls = store_urls(settings, home)
    if urls.pointers.startswith("sqlite:///") and not Path(urls.pointers.removeprefix("sqlite:///")).exists():
        raise Problem("there is no store yet", "`skiway serve` creates it", state=State.skipped)
    with (
        open_pointers(urls.pointers, options=urls.pointer_options) as pointers,
        open_blobs(urls.blobs, options=urls.blob_options) as blobs,
    ):
        yield Stores(pointers, blobs)


def pointer_store(settings: Settings, home: Path) -> str:
    """The pointer store answers, and has a format that this version can use."""
    with _stores(settings, home) as stores:
        store_checks(stores)["pointer store"]()
        found = store_format(stores)
        if pending_steps(found, STEPS):
            raise Problem(
                f"the store has format {found.version}{'' if found.complete else ', incomplete'}, which is old",
                "make a backup with skiway backup, then run skiway migrate",
                state=State.warning if found.complete else State.failed,
            )
        return f"{store_urls(settings, home).pointers.split('@')[-1]} answers, format {found.version}"


def blob_store(settings: Settings, home: Path) -> str:
    """The blob store answers."""
    with _stores(settings, home) as stores:
        store_checks(stores)["blob store"]()
        place = store_urls(settings, home).blobs
        if place.startswith("file://") and not os.access(folder := place.removeprefix("file://"), os.W_OK):
            raise Problem(f"{folder} cannot be written", f"chmod u+rwx {folder}")
        return f"{place} answers"


def secrets(settings: Settings, home: Path) -> str:
    """The secrets store can be opened with its key."""
    folder = settings.secrets.file.directory
    if settings.secrets.backend == "file" and (folder is None or not folder.is_dir()):
        raise Problem(f"there are no secrets in {home} yet", "`skiway serve` creates the store", state=State.skipped)
    secrets_of(settings)
    return f"{settings.secrets.backend}{f' at {folder}' if settings.secrets.backend == 'file' else ''}"


def tokens(settings: Settings) -> str:
    """The tokens file is valid, and has a token that is not expired."""
    if settings.auth.mode != "token":
        raise Problem(f"auth.mode is {settings.auth.mode}, which needs no tokens file", state=State.skipped)
    file, create = settings.auth.tokens.file, "skiway tokens create NAME --account default --role administrator"
    if file is None or not file.exists():
        raise Problem(
            f"the tokens file {file} does not exist, so the server does not start", f"create a token: {create}"
        )
    entries = TokenFile(file).entries()
    now = datetime.now(UTC)
    valid = [entry for entry in entries if entry.expires_at is None or entry.expires_at > now]
    if not valid:
        raise Problem(f"{file} has {len(entries)} tokens, and all are expired or revoked", f"create a token: {create}")
    return f"{len(valid)} of {len(entries)} tokens in {file} are valid"


# -- network -----------------------------------------------------------------------------------------------------------


def port(protocol: str, address: str, running: Announced | None) -> str:
    """The address is free, or used by the server of this home."""
    host, _, number = address.rpartition(":")
    if number == "0":
        return f"{address}: a free port is chosen"
    if running is not None and any(each.endswith(f":{number}") for each in running.addresses.values()):
        return f"{address} is used by the server of this home, process {running.pid}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(number)))
    except OSError as error:
        raise Problem(
            f"{address} cannot be used: {error.strerror}",
            f"stop the program that uses it, or choose another with --set server.{protocol}.address=HOST:PORT",
        ) from error
    return f"{address} is free"


def _http_port(address: str | None, running: Announced | None) -> str:
    if address is not None:
        return port("http", address, running)
    try:
        return port("http", DEFAULT_ADDRESS, running)
    except Problem:
        return f"{DEFAULT_ADDRESS} is in use, so the server chooses a free port"


def certificate(protocol: str, tls: Tls) -> str:
    """The certificate is valid now, and belongs to the key."""
    if tls.cert is None or tls.key is None:
        raise Problem(f"server.{protocol}.tls is not set", state=State.skipped)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    renew = f"create a new certificate, and set server.{protocol}.tls.cert and server.{protocol}.tls.key"
    try:
        found = load_pem_x509_certificate(tls.cert.read_bytes())
        key = load_pem_private_key(tls.key.read_bytes(), password=None)
    except OSError as error:
        raise Problem(f"{error.filename} cannot be read: {error.strerror}", renew) from error
    except (ValueError, TypeError) as error:
        raise Problem(f"the certificate {tls.cert} or its key {tls.key} is not PEM: {error}", renew) from error
    if found.public_key() != key.public_key():
        raise Problem(f"the key {tls.key} is not that of the certificate {tls.cert}", renew)
    return _validity(found, tls.cert, renew)


def _validity(found: x509.Certificate, file: Path, renew: str) -> str:
    now, begins, ends = datetime.now(UTC), found.not_valid_before_utc, found.not_valid_after_utc
    if now < begins:
        raise Problem(f"{file} is valid only from {begins:%Y-%m-%d %H:%M} UTC on", f"set the clock, or {renew}")
    if now >= ends:
        raise Problem(f"{file} expired at {ends:%Y-%m-%d %H:%M} UTC", renew)
    shown = f"{file} is valid until {ends:%Y-%m-%d %H:%M} UTC"
    if ends - now < SOON:
        raise Problem(shown, renew, state=State.warning)
    return shown


def disk_clock(home: Path, clock: Callable[[], float]) -> str:
    """The clock of the machine agrees with that of the disk, which may be on the network."""
    if not home.is_dir():
        raise Problem(f"there is no directory {home}", state=State.skipped)
    with tempfile.TemporaryFile(dir=home) as probe:
        probe.write(b"x")
        probe.flush()
        skew = os.fstat(probe.fileno()).st_mtime - clock()
    if abs(skew) > MAX_SKEW_S:
        raise Problem(
            f"the clock of this machine differs by {abs(skew):.0f} s from that of the disk of {home}",
            "synchronize the clocks (NTP): tokens, leases and transactions depend on them",
        )
    return f"agrees with the disk within {MAX_SKEW_S:g} s"
