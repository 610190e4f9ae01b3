"""Plugins by name or URL scheme: a setting names a backend, and any installed package may provide one as an entry point.

The name of an entry point is the scheme of its URLs, its value a function that opens them. Built-in backends are listed
in code too, so that they are found without the metadata of an installation. A backend is imported when it is first used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.foundation import extras


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
    with extras.needed("lake", f"a store at {scheme}:", when=scheme in built_in):
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
    found = entry_points()
    return {group: tuple(found.select(group=group)) for group in found.groups}


def url_scheme(url: str) -> str:
    """The part of `url` before the colon, or an empty string. The rest may hold a password and is never shown."""
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""
