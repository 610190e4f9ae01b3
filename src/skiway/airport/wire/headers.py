"""Names of the gRPC headers and trailers that travel with Airport calls. All values are text unless the name ends in -bin."""

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

# of every call
USER_AGENT: Final = "airport-user-agent"
LOCATION: Final = "authority"  # the location as the user wrote it; ordinary metadata, not HTTP/2's :authority
SESSION_ID: Final = "airport-client-session-id"
AUTHORIZATION: Final = "authorization"

# of calls about one catalog, scan, action or exchange
CATALOG: Final = "airport-catalog"
CORRELATION_ID: Final = "x-correlation-id"
TRACE_ID: Final = "airport-trace-id"
FLIGHT_PATH: Final = "airport-flight-path"
ACTION_NAME: Final = "airport-action-name"
TRANSACTION_ID: Final = "airport-transaction-id"
JSON_TRANSACTION_ID: Final = "x-transaction-id"  # what clients of the JSON contract send
AUTO_COMMIT: Final = "airport-auto-commit"  # our own: "0" where the client ends its transaction itself
ROWS_FOLLOW: Final = "airport-rows-follow"  # our own: "1" on a create_table whose first rows are inserted right after
OPERATION: Final = "airport-operation"
RETURN_CHUNKS: Final = "return-chunks"
SKIP_RESULTS: Final = "airport-skip-producing-results"
JSON_FILTERS: Final = "airport-duckdb-json-filters"
LIST_CATALOG: Final = "airport-list-flights-filter-catalog"
LIST_SCHEMA: Final = "airport-list-flights-filter-schema"

# trailers that make an Arrow client see more than gRPC's code
ARROW_STATUS: Final = "x-arrow-status"
ARROW_MESSAGE: Final = "x-arrow-status-message-bin"
ERROR_DETAILS: Final = "grpc-status-details-bin"
ERROR_CLASS: Final = "skiway-error"  # our own: the class of the error in `skiway.errors`

REUSE_CONNECTION: Final = "arrow-flight-reuse-connection://?"
DUCKDB_USER_AGENT: Final = "airport/20250723"


def can_carry(text: str) -> bool:
    """Whether a header can hold `text`: printable ASCII. A client of gRPC in C++ that tries with more ends its process."""
    return text.isascii() and text.isprintable()


def can_repeat(path: str) -> bool:
    """Whether the path of a descriptor fits into its header; servers take some kilobytes of headers in all."""
    return can_carry(path) and len(path) <= 4096
