"""What the connectors of a process may access, as configured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from skiway.config import Settings
from skiway.config.fields import values_of
from skiway.config.source_access import AddressRule
from skiway.demo.home import DemoHome
from skiway.errors import InvalidArgument
from skiway.runtime.stores import store_urls
from skiway.security.source_access import SourceAccess, location
from skiway.security.source_access.access import EVERY_ADDRESS, is_of_system

PUBLIC: Final = (AddressRule.parsed("public"),)
OLD_LEVELS: Final = {"public": PUBLIC, "private": EVERY_ADDRESS, "any": EVERY_ADDRESS}


def source_access_of(settings: Settings, home: Path) -> SourceAccess:
    """The rules of the settings `sources`. The server's own files are closed: its home, its stores and its warehouse."""
    _check_approved(settings, home)
    closed = tuple(_closed(settings, home))
    roots = settings.sources.local_roots
    if roots is not None:
        _check_roots(roots, closed)
    is_dev = settings.auth.mode == "dev"
    return SourceAccess(
        local_roots=roots if roots is not None else ("/",) if is_dev else (),
        closed=closed,
        own_roots=tuple(_examples(home)),
        addresses=_addresses(settings, is_dev=is_dev),
        ambient_credentials=settings.sources.ambient_credentials,
        for_callers=True,
        writable=settings.sources.writable,
    )


def _addresses(settings: Settings, *, is_dev: bool) -> tuple[AddressRule, ...]:
    given, old = settings.sources.addresses, settings.reconciler.source_addresses
    if given is not None:
        return tuple(map(AddressRule.parsed, given))
    if old is not None:
        return OLD_LEVELS[old]
    return EVERY_ADDRESS if is_dev else PUBLIC


def _closed(settings: Settings, home: Path) -> Iterator[str]:
    """The locations of the server's own files."""
    yield str(home.absolute())
    yield settings.warehouse.uri or str(home.absolute() / "warehouse")
    yield from (each.partition("=")[2] for each in settings.warehouse.locations)
    for _, value in values_of(settings):
        if isinstance(value, Path):
            yield str(value.absolute())
    urls = store_urls(settings, home)
    for url in (urls.pointers, urls.blobs):
        parts = urlsplit(url)
        if parts.scheme == "s3":
            yield f"s3://{parts.netloc}/{parts.path.strip('/')}"
        elif parts.scheme == "sqlite":
            file = str(location(url.removeprefix("sqlite:///")))
            yield from (file, f"{file}-wal", f"{file}-shm")
        elif parts.scheme == "file":
            yield unquote(parts.path)


def _examples(home: Path) -> Iterator[str]:
    """The folders in the home where the server itself writes sources for its examples."""
    yield str(home.absolute() / "examples")
    demo = DemoHome(home.absolute())
    if demo.is_marked:
        yield str(demo.sources)


def _check_approved(settings: Settings, home: Path) -> None:
    """Raise if an approved location of managed tables contains, or is in, the server's own files or those of the system."""
    own = [location(each).real() for each in (str(home.absolute()), settings.warehouse.uri or "") if each]
    for each in settings.warehouse.locations:
        place = location(each.partition("=")[2]).real()
        around = [str(other) for other in own if place.is_below(other) or other.is_below(place)]
        if around or is_of_system(place):
            raise InvalidArgument(
                f"warehouse.locations contains {each}, which overlaps {', '.join(around) or 'a folder of the system'}: choose a "
                "folder apart from the server's own files and those of the system",
                key="config.invalid",
            )


def _check_roots(roots: tuple[str, ...], closed: tuple[str, ...]) -> None:
    """Raise if a root is a folder that is never open."""
    for root in roots:
        place = location(root).real()
        inside = [each for each in closed if place.is_below(location(each).real())]
        if inside or is_of_system(place):
            raise InvalidArgument(
                f"sources.local_roots contains {root}, which is in {', '.join(inside) or 'a folder of the system'}: the folders of "
                "the server and of the system are never open to connectors; move the data to a folder of its own",
                key="config.invalid",
            )
