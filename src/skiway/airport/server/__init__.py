"""The server behind the library: the Flight service, its actions and exchanges, tickets, and status codes.

Authors of servers use `Server` and `serve`. A process that already has a gRPC server adds an `AirportService` to it.
"""

from skiway.airport.server.lookup import CatalogResolver, Catalogs
from skiway.airport.server.server import Server, Tls, serve
from skiway.airport.server.service import AirportService, Limits
from skiway.airport.server.tickets import TicketOffice

__all__ = ["AirportService", "CatalogResolver", "Catalogs", "Limits", "Server", "TicketOffice", "Tls", "serve"]
