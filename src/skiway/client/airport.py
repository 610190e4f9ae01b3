"""The client: what DuckDB's Airport extension does for a statement, from Python."""

from __future__ import annotations

from skiway.client.attached import CatalogVersion
from skiway.client.calling import Calling
from skiway.client.defining import Defining
from skiway.client.writing import Writing

__all__ = ["AirportClient", "CatalogVersion"]


class AirportClient(Writing, Calling, Defining):
    """A catalog of an Airport server, attached as DuckDB attaches it: the same calls with the same headers.

    `location` is `grpc://host:port`, `grpc+tls://…`, `grpc+unix:///path`, or all in one as in DuckDB:
    `grpc://host:port/catalog?auth_token=…`. Nothing is sent before the first use. There is no deadline unless
    `timeout_s` sets one for each call, the whole stream of a scan included. With `token_on_scans=False` the token goes
    where DuckDB sends one that was given to ATTACH alone: to calls about the catalog, not to scans.

    A client may be used from many threads at once; `transaction()` holds for the thread that opened it.
    """
