"""A minimal server with a table, a scalar function and a table function.

Start it with `python examples/basic.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'demo' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM demo.sales.people;
    SELECT demo.sales.shout(name) FROM demo.sales.people;
    SELECT * FROM demo.sales.numbers(3);

Press Ctrl-C to stop the server.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import Catalog, CatalogBuilder, serve


def catalog() -> Catalog:
    """The catalog `demo` with one schema."""
    demo = CatalogBuilder("demo")
    sales = demo.schema("sales", comment="orders and people")

    @sales.table(schema=pa.schema({"id": pa.int64(), "name": pa.string()}), comment="people")
    def people(_scan):
        # A scan may return any Arrow data: a table, a batch, a reader, or a generator of batches.
        return pa.table({"id": [1, 2], "name": ["Ada", "Grace"]})

    @sales.scalar_function
    def shout(text: pa.StringArray) -> pa.StringArray:
        return pc.utf8_upper(text)  # one result per row; the annotations are the types

    @sales.table_function(schema=pa.schema({"n": pa.int64()}))
    def numbers(upto: pa.Int64Scalar):
        # A table function takes scalars and returns Arrow data.
        yield pa.record_batch({"n": range(upto.as_py())})

    return demo.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
