"""The names of the gRPC headers and trailers of Airport calls. Values are strings unless the name ends in -bin."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACTION_NAME",
    "ARROW_MESSAGE",
    "ARROW_STATUS",
    "AUTHORIZATION",
    "AUTO_COMMIT",
    "CATALOG",
    "CORRELATION_ID",
    "DUCKDB_USER_AGENT",
    "ERROR_CLASS",
    "ERROR_DETAILS",
    "ERROR_FACTS",
    "FLIGHT_PATH",
    "JSON_FILTERS",
    "JSON_TRANSACTION_ID",
    "LIST_CATALOG",
    "LIST_SCHEMA",
    "LOCATION",
    "OPERATION",
    "RETURN_CHUNKS",
    "REUSE_CONNECTION",
    "ROWS_FOLLOW",
    "SERVICE",
    "SESSION_ID",
    "SKIP_RESULTS",
    "TRACE_ID",
    "TRANSACTION_ID",
    "USER_AGENT",
    "can_carry",
    "can_repeat",
]


SERVICE: Final = "arrow.flight.protocol.FlightService"

# every call
USER_AGENT: Final = "airport-user-agent"
LOCATION: Final = "authority"  # the location as the user wrote it; ordinary metadata, not HTTP/2's :authority
SESSION_ID: Final = "airport-client-session-id"
AUTHORIZATION: Final = "authorization"

# calls that concern a catalog, scan, action or exchange
CATALOG: Final = "airport-catalog"
CORRELATION_ID: Final = "x-correlation-id"
TRACE_ID: Final = "airport-trace-id"
FLIGHT_PATH: Final = "airport-flight-path"
ACTION_NAME: Final = "airport-action-name"
TRANSACTION_ID: Final = "airport-transaction-id"
JSON_TRANSACTION_ID: Final = "x-transaction-id"  # for clients of the JSON contract
AUTO_COMMIT: Final = "airport-auto-commit"  # Skiway's: "0" if the client ends its transaction itself
ROWS_FOLLOW: Final = "airport-rows-follow"  # Skiway's: "1" for a create_table that is followed by an INSERT
OPERATION: Final = "airport-operation"
RETURN_CHUNKS: Final = "return-chunks"
SKIP_RESULTS: Final = "airport-skip-producing-results"
JSON_FILTERS: Final = "airport-duckdb-json-filters"
LIST_CATALOG: Final = "airport-list-flights-filter-catalog"
LIST_SCHEMA: Final = "airport-list-flights-filter-schema"

# trailers from which Arrow clients learn more than the gRPC code
ARROW_STATUS: Final = "x-arrow-status"
ARROW_MESSAGE: Final = "x-arrow-status-message-bin"
ERROR_DETAILS: Final = "grpc-status-details-bin"
ERROR_CLASS: Final = "skiway-error"  # Skiway's: the class of the error in `skiway.errors`
ERROR_FACTS: Final = "skiway-error-bin"  # Skiway's: its key and parameters as JSON, where DuckDB reads no JSON

REUSE_CONNECTION: Final = "arrow-flight-reuse-connection://?"
DUCKDB_USER_AGENT: Final = "airport/20250723"


def can_carry(text: str) -> bool:
    """Whether a header can carry `text`, which must be printable ASCII. Other characters crash gRPC clients in C++."""
    return text.isascii() and text.isprintable()


def can_repeat(path: str) -> bool:
    """Whether a header can carry the path of a descriptor. Servers accept only a few kilobytes of headers."""
    return can_carry(path) and len(path) <= 4096
