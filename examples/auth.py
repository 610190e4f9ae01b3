"""Tokens: who calls decides which rows of a table are shown, and which catalogs.

Start it with `python examples/auth.py [location]`, then type into DuckDB:

    INSTALL airport FROM community; LOAD airport;
    CREATE SECRET (TYPE airport, auth_token 'token-of-ada', SCOPE 'grpc://127.0.0.1:50051');
    ATTACH 'shop' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM shop.sales.orders;

Ada sees her own two orders and may not use the catalog `books`; 'token-of-grace' sees one order and may use both. A
token given to ATTACH alone does not reach scans: DuckDB needs the secret. Ctrl-C ends the server.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import BearerAuth, Catalog, CatalogAuthorizer, CatalogBuilder, Request, current_request, serve
from skiway.errors import PermissionDenied

ORDERS = pa.table({"id": [1, 2, 3], "customer": ["ada", "grace", "ada"], "total": [10.0, 25.5, 7.25]})
TOKENS = {"token-of-ada": "ada", "token-of-grace": "grace"}


class Staff(BearerAuth, CatalogAuthorizer):
    """Known by their tokens; the books are for Grace."""

    def authorize_catalog(self, request: Request, catalog: str) -> None:
        if catalog == "books" and request.identity != "grace":
            raise PermissionDenied(f"{request.identity} may not use the catalog {catalog!r}: ask Grace")


def catalogs() -> list[Catalog]:
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
