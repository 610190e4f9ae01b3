"""Write Airport servers: DuckDB attaches them and finds tables and functions made of Python and Arrow."""

from skiway.airport.auth import Authenticator, BearerAuth, CatalogAuthorizer
from skiway.airport.builder import CatalogBuilder, SchemaBuilder
from skiway.airport.catalog import (
    Bindable,
    Catalog,
    CatalogVersion,
    HasStatistics,
    Planned,
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
from skiway.airport.ddl import CreateTable, DynamicCatalog, DynamicSchema, DynamicTable
from skiway.airport.functions import (
    ANY,
    InOutCall,
    Parameter,
    ScalarFunction,
    TableFunction,
    TableInOutFunction,
    Volatility,
)
from skiway.airport.registry import CatalogResolver, Catalogs
from skiway.airport.request import Request, current_request
from skiway.airport.server import Server, Tls
from skiway.airport.service import AirportService, Limits
from skiway.airport.serving import serve
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.table_refs import DynamicSchemaTableRef, FunctionCall, FunctionCallRequest, SchemaRequest, TableRef
from skiway.airport.transactions import Transactional, TransactionManager, TransactionStatus
from skiway.airport.writing import (
    Deletable,
    DeletableBatch,
    DmlOptions,
    DmlResult,
    Insertable,
    Statement,
    Updatable,
    UpdatableBatch,
    Writable,
    Write,
)

__all__ = [
    "ANY",
    "AirportService",
    "Authenticator",
    "BearerAuth",
    "Bindable",
    "Catalog",
    "CatalogAuthorizer",
    "CatalogBuilder",
    "CatalogResolver",
    "CatalogVersion",
    "Catalogs",
    "ColumnStatistics",
    "CreateTable",
    "Deletable",
    "DeletableBatch",
    "DmlOptions",
    "DmlResult",
    "DynamicCatalog",
    "DynamicSchema",
    "DynamicSchemaTableRef",
    "DynamicTable",
    "FunctionCall",
    "FunctionCallRequest",
    "HasStatistics",
    "InOutCall",
    "Insertable",
    "Limits",
    "Parameter",
    "Planned",
    "Request",
    "ScalarFunction",
    "ScanOptions",
    "Schema",
    "SchemaBuilder",
    "SchemaRequest",
    "Server",
    "SharedListing",
    "Statement",
    "Table",
    "TableFunction",
    "TableInOutFunction",
    "TableRef",
    "TimePoint",
    "TimeTravel",
    "Tls",
    "TransactionManager",
    "TransactionStatus",
    "Transactional",
    "Updatable",
    "UpdatableBatch",
    "Versioned",
    "Volatility",
    "Writable",
    "Write",
    "current_request",
    "find_rowid_column",
    "project_schema",
    "serve",
]
