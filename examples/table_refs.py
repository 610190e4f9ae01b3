"""Table references: the server tells DuckDB which files to read, and DuckDB runs read_parquet or read_csv itself.

Start it with `python examples/table_refs.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'archive' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM archive.files.orders;
    SELECT * FROM archive.files.customers;

DuckDB must be able to read the files, so run it on the same machine. Press Ctrl-C to stop the server.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from skiway.airport import Catalog, CatalogBuilder, FunctionCall, FunctionCallRequest, serve

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "total": pa.float64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})


def write_files(folder: Path) -> None:
    """Write two Parquet files and a CSV file."""
    spring = pa.table({"id": [1, 2], "customer": [7, 8], "total": [10.0, 25.5]}, ORDERS)
    summer = pa.table({"id": [3], "customer": [7], "total": [7.25]}, ORDERS)
    pa.parquet.write_table(spring, folder / "orders-spring.parquet")
    pa.parquet.write_table(summer, folder / "orders-summer.parquet")
    pa.csv.write_csv(pa.table({"id": [7, 8], "name": ["Ada", "Grace"]}, CUSTOMERS), folder / "customers.csv")


def catalog(folder: Path) -> Catalog:
    """A catalog with a table over all Parquet files of a folder, and one over a CSV file."""
    archive = CatalogBuilder("archive")
    files = archive.schema("files", comment="files that clients read directly")

    @files.table_ref(schema=ORDERS, comment="one file per season")
    def orders(_request: FunctionCallRequest) -> FunctionCall:
        return FunctionCall("read_parquet", [str(path) for path in sorted(folder.glob("orders-*.parquet"))])

    @files.table_ref(schema=CUSTOMERS)
    def customers(_request: FunctionCallRequest) -> FunctionCall:
        return FunctionCall("read_csv", str(folder / "customers.csv"), header=True)

    return archive.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        serve(catalog(Path(folder)), *sys.argv[1:2])
