"""The lake: the metastore's catalogs as DuckDB attaches them over Airport.

Tables of connectors can be read, managed tables can be read and written.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.lake.catalog import LakeCatalogs, airport_service, signing_key
from skiway.lake.opened_tables import Handles, Sources

__all__ = ["Handles", "LakeCatalogs", "Sources", "airport_service", "signing_key"]
