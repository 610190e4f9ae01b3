"""Arrow Flight SQL over the Flight service of an Airport server: queries and metadata for BI tools, read-only.

`FlightSql` is the protocol, to be passed to an `AirportService`. Catalogs, schemas and tables are those of the server; a
`SqlEngine` runs the queries. The server keeps no state for its clients: prepared statements and tickets are signed, so any
server with the same key accepts them.

- `metadata` lists catalogs, schemas, tables and what the server supports
- `protocol` decodes commands and answers the calls
"""

from skiway.flightsql.metadata import BoundSql, SqlEngine, SqlResult
from skiway.flightsql.protocol import COMPONENT, READING, FlightSql

__all__ = ["COMPONENT", "READING", "BoundSql", "FlightSql", "SqlEngine", "SqlResult"]
