"""Arrow Flight SQL over the Flight service of an Airport server: queries and metadata for BI tools, read-only.

`FlightSql` is the protocol, to be passed to an `AirportService`. Catalogs, schemas and tables are those of the server; a
`SqlEngine` runs the queries. The server keeps no state for its clients: prepared statements and tickets are signed, so any
server with the same key accepts them.

- `metadata` lists catalogs, schemas and tables
- `facts` is what the server supports
- `parameters` names the types in which clients send the values of parameters
- `sessions` has the catalog and the schema that a client chose
- `protocol` decodes commands and answers the calls
"""

from skiway.flightsql.metadata import BoundSql, Place, SqlEngine, SqlResult
from skiway.flightsql.protocol import COMPONENT, READING, FlightSql

__all__ = ["COMPONENT", "READING", "BoundSql", "FlightSql", "Place", "SqlEngine", "SqlResult"]
