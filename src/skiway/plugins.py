"""Plugins by URL scheme: a URL names a backend, and any installed package may provide one as an entry point.

The name of an entry point is the scheme of its URLs, its value a function that opens them. Built-in backends are listed
in code too, so that they are found without the metadata of an installation. A backend is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from skiway import extras
from skiway.errors import InvalidArgument, PreconditionFailed

__all__ = ["opener_for_url", "url_scheme"]


def opener_for_url(group: str, url: str, built_in: Mapping[str, str]) -> Any:
    """Return the function of the entry point group `group` that opens `url`.

    `built_in` maps schemes to `module:function`. Raises InvalidArgument if no package provides the scheme,
    PreconditionFailed if two packages provide the same one, and MissingExtra if a built-in one needs an extra.
    """
    scheme = url_scheme(url)
    known = {name: EntryPoint(name, value, group) for name, value in built_in.items()}
    for entry in entry_points(group=group):
        if known.setdefault(entry.name, entry).value != entry.value:
            raise PreconditionFailed(
                f"both {known[entry.name].value} and {entry.value} are installed for {entry.name}: URLs; remove one"
            )
    if scheme not in known:
        raise InvalidArgument(
            f"unknown URL scheme {scheme!r} for {group}; begin the URL with one of "
            f"{', '.join(f'{name}:' for name in sorted(known))}, or install the package that provides it",
            key="store.scheme.unknown",
        )
    with extras.needed("lake", f"a store at {scheme}:", when=scheme in built_in):
        return known[scheme].load()


def url_scheme(url: str) -> str:
    """The part of `url` before the colon, or an empty string. The rest may hold a password and is never shown."""
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""
