"""The configuration that clients ask for first: which prefix to use, and what is served."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from skiway.errors import InvalidArgument
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.rest.calls import Act, Answer, Asked, said
from skiway.rest.places import named_catalog

__all__ = ["config_of", "tokens"]


def config_of(endpoints: Iterable[str]) -> Act:
    """What answers clients that ask for their configuration."""
    served = sorted(endpoints)

    def config(asked: Asked) -> Answer:
        """The catalog that `warehouse` names, or the only one there is, becomes the prefix of all paths."""
        name = asked.query.get("warehouse", "")
        found = named_catalog(asked.realm, name) if name else _only(asked)
        return said(
            {
                "defaults": {},
                "overrides": {"prefix": quote(found.display_name, safe="")},
                "endpoints": served,
                "idempotency-key-lifetime": f"PT{int(asked.realm.idempotency_ttl_s)}S",
            }
        )

    return config


def tokens(_: Asked) -> Answer:
    """Tokens are not made here. The answer is in the form of OAuth, which is what clients of this path read."""
    sentence = (
        "this server makes no tokens: let your operator or identity provider make one, and give it to the client as "
        "`token`, or leave `credential` out"
    )
    return said({"error": "unsupported_grant_type", "error_description": sentence}, 400)


def _only(asked: Asked) -> v1.Catalog:
    page = catalogs.list_(asked.realm, v1.ListCatalogsRequest(page=v1.PageRequest(page_size=20)))
    found = list(page.catalogs)
    if len(found) != 1:
        names = ", ".join(each.display_name for each in found) or "none yet"
        raise InvalidArgument(
            f"no warehouse was named, and there is not just one: name a catalog as `warehouse`; there are {names}",
            key="warehouse.required",
            field="warehouse",
        )
    return found[0]
