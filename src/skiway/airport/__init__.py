"""The library for writing Airport servers, which DuckDB attaches to query tables and functions made of Python and Arrow.

This package is the whole API for authors: build a catalog, or implement the interfaces, and serve it. The server behind it
is in `skiway.airport.server`, pushed-down filters are in `skiway.airport.filters`, a ready-made database is in
`skiway.airport.memory`, and geometry columns are in `skiway.airport.geometry`.

Names are imported when they are first used: clients need the wire format of this package, but not the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Build a catalog from functions
    from skiway.airport.builder import CatalogBuilder, SchemaBuilder

    # Implement a catalog: interfaces and capabilities
    # Change definitions: CREATE, DROP and ALTER
    from skiway.airport.catalog import (
        Bindable,
        Catalog,
        CatalogVersion,
        ColumnStatistics,
        Commands,
        CreateTable,
        DynamicCatalog,
        DynamicSchema,
        DynamicTable,
        HasStatistics,
        LazyListing,
        Planned,
        Schema,
        SharedListing,
        Table,
        TimeTravel,
        Transactional,
        TransactionManager,
        TransactionStatus,
        Versioned,
    )

    # Functions
    from skiway.airport.functions import (
        ANY,
        InOutCall,
        Parameter,
        ScalarFunction,
        TableFunction,
        TableInOutFunction,
        Volatility,
    )

    # The current request in other threads and in unit tests
    # The current request, authentication, authorization and observation
    from skiway.airport.request import (
        Authenticator,
        BearerAuth,
        CatalogAuthorizer,
        Observer,
        Request,
        ServedCall,
        acting_as,
        current_request,
        submit,
        with_request,
    )
    from skiway.airport.server.call_handlers import Limits

    # Serve catalogs
    from skiway.airport.server.host import CatalogResolver, Catalogs
    from skiway.airport.server.server import Server, Tls, serve
    from skiway.airport.server.service import AirportService

    # Let DuckDB read files itself
    from skiway.airport.table_refs import (
        DynamicSchemaTableRef,
        FunctionCall,
        FunctionCallRequest,
        SchemaRequest,
        TableRef,
    )

    # Read rows
    # Write rows: INSERT, UPDATE and DELETE
    from skiway.airport.tables import (
        Deletable,
        DeletableBatch,
        DmlOptions,
        DmlResult,
        Insertable,
        ScanOptions,
        Statement,
        TimePoint,
        Updatable,
        UpdatableBatch,
        Writable,
        Write,
        find_rowid_column,
        project_schema,
    )

__all__ = [  # noqa: RUF022  (grouped by topic)
    # serve
    "serve", "Server", "Tls", "Limits", "AirportService", "Catalogs", "CatalogResolver",
    # requests, authentication and observation
    "Request", "current_request", "submit", "with_request", "acting_as",
    "Authenticator", "BearerAuth", "CatalogAuthorizer", "Observer", "ServedCall",
    # build a catalog
    "CatalogBuilder", "SchemaBuilder",
    # implement a catalog
    "Catalog", "Schema", "Table", "Versioned", "CatalogVersion", "SharedListing", "LazyListing", "Commands",
    "Transactional", "TransactionManager", "TransactionStatus",
    # read
    "ScanOptions", "TimePoint", "TimeTravel", "Planned", "Bindable", "HasStatistics", "ColumnStatistics",
    "find_rowid_column", "project_schema",
    # table references
    "TableRef", "DynamicSchemaTableRef", "FunctionCall", "FunctionCallRequest", "SchemaRequest",
    # write
    "Insertable", "Updatable", "UpdatableBatch", "Deletable", "DeletableBatch", "DmlOptions", "DmlResult",
    "Writable", "Write", "Statement",
    # change definitions
    "DynamicCatalog", "DynamicSchema", "DynamicTable", "CreateTable",
    # functions
    "ScalarFunction", "TableFunction", "TableInOutFunction", "InOutCall", "Parameter", "Volatility", "ANY",
]  # fmt: skip

_NAMES = {
    "builder": "CatalogBuilder SchemaBuilder",
    "catalog": "Bindable Catalog CatalogVersion ColumnStatistics Commands CreateTable DynamicCatalog DynamicSchema DynamicTable "
    "HasStatistics LazyListing Planned Schema SharedListing Table TimeTravel Transactional TransactionManager TransactionStatus Versioned",
    "functions": "ANY InOutCall Parameter ScalarFunction TableFunction TableInOutFunction Volatility",
    "request": "Authenticator BearerAuth CatalogAuthorizer Observer Request ServedCall acting_as current_request submit with_request",
    "server.call_handlers": "Limits",
    "server.host": "CatalogResolver Catalogs",
    "server.server": "Server Tls serve",
    "server.service": "AirportService",
    "table_refs": "DynamicSchemaTableRef FunctionCall FunctionCallRequest SchemaRequest TableRef",
    "tables": "Deletable DeletableBatch DmlOptions DmlResult Insertable ScanOptions Statement TimePoint Updatable "
    "UpdatableBatch Writable Write find_rowid_column project_schema",
}
"""The names that each module defines."""

_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
