"""The metastore's catalogs, attached by DuckDB over Airport: tables of connectors to read, managed tables to write."""

from skiway.lake.catalogs import LakeCatalogs
from skiway.lake.connecting import Sources
from skiway.lake.handles import Handles
from skiway.lake.service import airport_service, signing_key

__all__ = ["Handles", "LakeCatalogs", "Sources", "airport_service", "signing_key"]
