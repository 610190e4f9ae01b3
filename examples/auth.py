"""Authentication and authorization: the caller's token decides which rows and which catalogs are visible.

Start it with `python examples/auth.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    CREATE SECRET (TYPE airport, auth_token 'token-of-ada', SCOPE 'grpc://127.0.0.1:50051');
    ATTACH 'shop' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM shop.sales.orders;

Ada sees her own two orders and has no access to the catalog `books`. With 'token-of-grace', you see one order and may use
both catalogs. A token in ATTACH is not used for scans, so DuckDB needs the secret. Press Ctrl-C to stop the server.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import BearerAuth, Catalog, CatalogAuthorizer, CatalogBuilder, Request, current_request, serve
from skiway.errors import PermissionDenied

ORDERS = pa.table({"id": [1, 2, 3], "customer": ["ada", "grace", "ada"], "total": [10.0, 25.5, 7.25]})
TOKENS = {"token-of-ada": "ada", "token-of-grace": "grace"}


class Staff(BearerAuth, CatalogAuthorizer):
    """Authenticates callers by token. Only Grace may use the catalog `books`."""

    def authorize_catalog(self, request: Request, catalog: str) -> Request:
        if catalog == "books" and request.identity != "grace":
            raise PermissionDenied(f"{request.identity} has no access to catalog {catalog!r}: ask Grace")
        return request


def catalogs() -> list[Catalog]:
    """A catalog whose rows depend on the caller, and a catalog with all rows."""
    shop, books = CatalogBuilder("shop"), CatalogBuilder("books")

    @shop.schema("sales").table(schema=ORDERS.schema, comment="the caller's own orders")
    def orders(_scan):
        return ORDERS.filter(pc.field("customer") == current_request().identity)

    @books.schema("sales").table(schema=ORDERS.schema, comment="everybody's orders")
    def all_orders(_scan):
        return ORDERS

    return [shop.build(), books.build()]


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalogs(), *sys.argv[1:2], auth=Staff(TOKENS.get))
