"""The lake: the metastore's catalogs as DuckDB attaches them over Airport, and as BI tools query them over Flight SQL.

Tables of connectors can be read, managed tables can be read and written.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.lake.reading.opened_tables import Handles, Sources
from skiway.lake.service import airport_service
