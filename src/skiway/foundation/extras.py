"""Optional parts of an installation: extras, which add dependencies, and plugins, which other packages provide.

    with extras.needed("geometry", "geometry columns"):
        import shapely

A package that cannot be imported at all without an extra starts with `extras.check("lake")`, which loads no library.

A setting names a backend by a name or the scheme of a URL, and any installed package may provide one as an entry point:
the name is the scheme, and the value a function that opens the URLs. Built-in backends are listed in code too, so that they
are found without the metadata of an installation. A backend is imported when it is first used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument, PreconditionFailed, Unsupported

if TYPE_CHECKING:  # importing this module must stay cheap
    from importlib.metadata import EntryPoint

EXTRAS: Final = {
    "memory": "an in-memory database to serve",
    "geometry": "geometry columns",
    "sql": "filters for SQLite, PostgreSQL and other databases",
    "duckdb": "SQL on a lake with the DuckDB of your choice, from Python",
    "pytest": "fixtures for tests of your own server",
    "lake": "the server and this command",
    "spark": "column statistics of large tables, pipelines and copies on Spark",
    "postgres": "metadata in PostgreSQL",
    "aws": "tables in AWS Glue, metadata in DynamoDB and secrets in AWS Secrets Manager",
    "gcs": "tables in Google Cloud Storage",
    "azure": "tables in Azure Data Lake Storage",
    "lineage": "lineage as OpenLineage events",
    "mcp": "the lake as tools of assistants, with the Model Context Protocol",
    "all": "everything",
}
"""Every extra for users, and what it is for."""

LIBRARIES: Final[Mapping[str, tuple[str, str]]] = {
    "lake": (
        "the lakehouse catalog service",
        "cachetools cryptography datasketches "
        "deltalake duckdb fastavro fsspec grpc_health grpc_reflection httptools httpx jinja2 jwt markupsafe "
        "numpy obstore opentelemetry prometheus_client pydantic pyiceberg requests rich sqlalchemy sqlglot starlette tenacity typer "
        "uvicorn",
    ),
    "mcp": ("the MCP server", "mcp"),
}
"""What an extra is needed for, and the libraries that are checked for it."""


class MissingExtra(Unsupported, ImportError):
    """An optional library is not installed; the message names the extra that adds it."""

    def __init__(self, purpose: str, library: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed: pip install 'skiway[{extra}]'",
            key="extra.missing",
            extra=extra,
        )


def require(*libraries: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless all `libraries` can be imported. Top-level modules are not loaded."""
    for library in libraries:
        try:
            found = find_spec(library)
        except ModuleNotFoundError:  # the parent of a dotted name
            found = None
        if found is None:
            raise MissingExtra(purpose, library, extra)


@functools.cache
def check(extra: str) -> None:
    """Raise `MissingExtra` unless the extra is installed."""
    purpose, libraries = LIBRARIES[extra]
    require(*libraries.split(), extra=extra, purpose=purpose)


@contextmanager
def needed(extra: str, purpose: str, *, when: bool = True) -> Iterator[None]:
    """Turn the failure to import a library within the block into `MissingExtra`, unless `when` is false."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not when or library == "skiway":
            raise
        raise MissingExtra(purpose, library, extra) from error


def overview() -> str:
    """Which extra to install for what, in one sentence."""
    listed = ", ".join(f"{extra} ({purpose})" for extra, purpose in EXTRAS.items())
    return f"only the Python library is installed; add an extra, as in pip install 'skiway[lake]', for more: {listed}"


def opener_for_url(group: str, url: str, built_in: Mapping[str, str]) -> Any:
    """Return the function of the entry point group `group` that opens `url`.

    `built_in` maps schemes to `module:function`. Raises InvalidArgument if no package provides the scheme,
    PreconditionFailed if two packages provide the same one, and MissingExtra if a built-in one needs an extra.
    """
    scheme = url_scheme(url)
    known = _known(group, built_in)
    if scheme not in known:
        raise InvalidArgument(
            f"unknown URL scheme {scheme!r} for {group}; begin the URL with one of "
            f"{', '.join(f'{name}:' for name in sorted(known))}, or install the package that provides it",
            key="store.scheme.unknown",
        )
    with needed("lake", f"a store at {scheme}:", when=scheme in built_in):
        return known[scheme].load()


def named_plugin(group: str, name: str, built_in: Mapping[str, str]) -> Any:
    """Return what the entry point `name` of a group refers to. `built_in` maps names to `module:attribute`.

    Raises InvalidArgument if no package provides it, or if it cannot be imported.
    """
    known = _known(group, built_in)
    if name not in known:
        raise InvalidArgument(
            f"there is no {name!r} in the entry points {group}: choose from {', '.join(sorted(known))}, or install the package "
            "that provides it",
            key="plugin.unknown",
        )
    try:
        return known[name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"{known[name].value}, which is {name!r} in {group}, cannot be imported: {error}"
        ) from error


def _known(group: str, built_in: Mapping[str, str]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import EntryPoint

    known = {name: EntryPoint(name, value, group) for name, value in built_in.items()}
    for entry in _installed(tuple(sys.path)).get(group, ()):
        if known.setdefault(entry.name, entry).value != entry.value:
            raise PreconditionFailed(
                f"both {known[entry.name].value} and {entry.value} are installed for {entry.name} in {group}; remove one"
            )
    return known


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:  # noqa: ARG001 - the key of the cache
    """The entry points of all packages on `path` by group; reading them takes 30 ms."""
    from importlib.metadata import entry_points

    installed = entry_points()
    return {group: tuple(installed.select(group=group)) for group in installed.groups}


def url_scheme(url: str) -> str:
    """The part of `url` before the colon, or an empty string. The rest may hold a password and is never shown."""
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""
