"""Write Airport servers: DuckDB attaches them and finds tables and functions made of Python and Arrow."""

from skiway.airport.auth import Authenticator, BearerAuth, CatalogAuthorizer
from skiway.airport.builder import CatalogBuilder, SchemaBuilder
from skiway.airport.catalog import (
    Catalog,
    CatalogVersion,
    HasStatistics,
    ScanOptions,
    Schema,
    SharedListing,
    Table,
    TimePoint,
    TimeTravel,
    Versioned,
    find_rowid_column,
    project_schema,
)
from skiway.airport.functions import (
    ANY,
    InOutCall,
    Parameter,
    ScalarFunction,
    TableFunction,
    TableInOutFunction,
    Volatility,
)
from skiway.airport.registry import CatalogResolver
from skiway.airport.request import Request, current_request
from skiway.airport.server import Server, Tls
from skiway.airport.service import AirportService, Limits
from skiway.airport.serving import serve
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.table_refs import DynamicSchemaTableRef, FunctionCall, FunctionCallRequest, SchemaRequest, TableRef

__all__ = [
    "ANY",
    "AirportService",
    "Authenticator",
    "BearerAuth",
    "Catalog",
    "CatalogAuthorizer",
    "CatalogBuilder",
    "CatalogResolver",
    "CatalogVersion",
    "ColumnStatistics",
    "DynamicSchemaTableRef",
    "FunctionCall",
    "FunctionCallRequest",
    "HasStatistics",
    "InOutCall",
    "Limits",
    "Parameter",
    "Request",
    "ScalarFunction",
    "ScanOptions",
    "Schema",
    "SchemaBuilder",
    "SchemaRequest",
    "Server",
    "SharedListing",
    "Table",
    "TableFunction",
    "TableInOutFunction",
    "TableRef",
    "TimePoint",
    "TimeTravel",
    "Tls",
    "Versioned",
    "Volatility",
    "current_request",
    "find_rowid_column",
    "project_schema",
    "serve",
]
