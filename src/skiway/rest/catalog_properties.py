"""Properties that a catalog gives to its new tables and views.

The properties of a catalog that start with `table-default.` are defaults of new tables, which clients can override; those
that start with `table-override.` always apply. `view-default.` and `view-override.` do the same for views.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skiway.model import v1

__all__ = ["properties_of_new", "shown_properties"]

_KINDS: Final = ("table", "view")


def properties_of_new(kind: str, catalog: v1.Catalog, given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table or view for which a client gave some."""
    return _with(f"{kind}-default.", catalog) | dict(given) | _with(f"{kind}-override.", catalog)


def shown_properties(catalog: v1.Catalog, rule: str) -> dict[str, str]:
    """The defaults or overrides that clients receive with the configuration, so that they can apply them, too."""
    prefixes = tuple(f"{kind}-{rule}." for kind in _KINDS)
    return {name: value for name, value in sorted(catalog.properties.items()) if name.startswith(prefixes)}


def _with(prefix: str, catalog: v1.Catalog) -> dict[str, str]:
    found = catalog.properties.items()
    return {name.removeprefix(prefix): value for name, value in found if name.startswith(prefix)}
