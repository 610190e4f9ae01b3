"""The server behind the library: it serves catalogs to DuckDB over Arrow Flight.

Authors use `Server` or `serve`. A process that already has a gRPC server adds an `AirportService` to it. A call passes
through these modules:

- `call_handlers` authenticates the caller, observes the call and maps errors to gRPC codes, for the methods of `service`
- `host` opens the catalog of the call after authorization, and finds the table or function in it
- `actions` implements DoAction, `scans` DoGet, `exchange` DoExchange, and `json_contract` DoPut
- `discovery` describes catalogs and tables to clients, and `tickets` encodes addresses and signs tickets
"""

from skiway.airport.server.call_handlers import Limits
from skiway.airport.server.host import CatalogResolver, Catalogs
from skiway.airport.server.server import Server, Tls, serve
from skiway.airport.server.service import AirportService
from skiway.airport.server.tickets import TicketOffice

__all__ = ["AirportService", "CatalogResolver", "Catalogs", "Limits", "Server", "TicketOffice", "Tls", "serve"]
