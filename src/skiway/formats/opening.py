"""What is said about a source to open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from skiway.errors import InvalidArgument
from skiway.formats.files import Files
from skiway.formats.locations import Location, Reach, location
from skiway.formats.source import Source, TableName
from skiway.formats.web_access import check_endpoint

__all__ = ["KINDS", "SourceRequest", "open_source"]


@dataclass(frozen=True)
class SourceRequest:
    """An address, options, and credentials, which are never shown."""

    kind: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "source"

    @property
    def root(self) -> Location:
        """The address, of a source that is files."""
        return location(self.uri)

    @property
    def properties(self) -> dict[str, str]:
        """Options and credentials together."""
        return {**self.options, **self.credentials}

    @property
    def as_table(self) -> TableName | None:
        """The name of the one table that the address is, if the options say so."""
        name = self.options.get("external.table-name")
        namespace = tuple(filter(None, self.options.get("external.namespace", "").split(".")))
        return TableName(namespace, name) if name else None

    def files(self, vended: Mapping[str, str] | None = None) -> Files:
        """What the source may read: below its address, its warehouse, and what the operator allowed besides."""
        named = [self.uri.removeprefix("sqlite:///"), self.options.get("warehouse", "")]
        named += self.options.get("allowed-locations", "").split(",")
        roots = tuple(location(each.strip()) for each in named if _is_place(each.strip()))
        if roots and roots[0].name.endswith((".metadata.json", ".metadata.json.gz")):
            roots = (_table_folder(roots[0]), *roots)
        kept = {key: value for key, value in {**self.properties, **(vended or {})}.items() if key.startswith("s3.")}
        if endpoint := kept.get("s3.endpoint"):
            check_endpoint(endpoint)
        return Files(kept, Reach(roots))


def _is_place(text: str) -> bool:
    """Not the address of a service, or the name of a warehouse."""
    return "/" in text and not text.startswith(("http:", "https:", "postgresql"))


def _table_folder(metadata: Location) -> Location:
    return metadata.parent.parent if metadata.parent.name == "metadata" else metadata.parent


# --------------------
# Sources by kind. Further kinds come from packages, as entry points of the group `skiway.sources`.


KINDS: Final = {
    "iceberg": "skiway.formats.iceberg.sources:open_iceberg",
    "delta": "skiway.formats.delta.table:open_delta",
    "parquet": "skiway.formats.parquet.table:open_parquet",
}


def open_source(
    kind: str,
    uri: str,
    *,
    options: Mapping[str, str] | None = None,
    credentials: Mapping[str, str] | None = None,
) -> Source:
    """The source at `uri`: an upstream catalog, a folder of tables, or one table.

    `options` and `credentials` are listed in docs/formats.md. The address is checked before anything is asked of it.
    """
    return _opener(kind)(SourceRequest(kind, uri, dict(options or {}), dict(credentials or {})))


def _opener(kind: str) -> Callable[[SourceRequest], Source]:
    if kind in KINDS:
        module, _, function = KINDS[kind].partition(":")
        opener: Callable[[SourceRequest], Source] = getattr(import_module(module), function)
        return opener
    others: dict[str, EntryPoint] = {each.name: each for each in entry_points(group="skiway.sources")}
    if kind not in others:
        raise InvalidArgument(
            f"there is no kind of source called {kind!r}; there are {', '.join(sorted({*KINDS, *others}))}",
            key="source.kind",
            kind=kind,
        )
    loaded: Callable[[SourceRequest], Source] = others[kind].load()
    return loaded
