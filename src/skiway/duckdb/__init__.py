"""SQL on a lake with any DuckDB from 1.4 on, without an extension.

    with skiway.duckdb.connect("grpc://127.0.0.1:50051", token="…") as lake:
        lake.sql("SELECT * FROM lake.sales.orders WHERE day >= DATE '2026-01-01'").show()
        lake.sql("INSERT INTO lake.sales.orders SELECT * FROM 'new.parquet'")

`attach` adds a catalog to a DuckDB connection that exists already, for reading. `%load_ext skiway.duckdb` gives notebooks `%sql`.
The command `skiway sql` uses this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skiway.duckdb.connection import AttachedLake, LakeConnection, attach, connect


def load_ipython_extension(shell: Any) -> None:
    """Add `%sql` and `%%sql` to a notebook, which calls this for `%load_ext skiway.duckdb`."""
    import_module("skiway.duckdb.magic").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove them, and close their connection."""
    import_module("skiway.duckdb.magic").unload(shell)


__all__ = ["AttachedLake", "LakeConnection", "attach", "connect"]

if not TYPE_CHECKING:  # the command line imports modules of this package that need less

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from skiway.foundation import extras

        with extras.needed("duckdb", "skiway.duckdb"):
            found = globals()[name] = getattr(import_module("skiway.duckdb.connection"), name)
        return found
