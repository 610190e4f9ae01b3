"""The metastore's catalogs, attached by DuckDB over Airport: tables of connectors to read, managed tables to write."""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.lake.opened_tables import Handles, Sources
from skiway.lake.service import LakeCatalogs, airport_service, signing_key

__all__ = ["Handles", "LakeCatalogs", "Sources", "airport_service", "signing_key"]
