"""CREATE, ALTER and DROP: an in-memory database whose schemas and tables are created with SQL, with constraints.

Start it with `python examples/ddl.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'scratch' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM scratch.public.colours;

    CREATE SCHEMA scratch.shop;
    CREATE TABLE scratch.shop.orders (
        id BIGINT PRIMARY KEY, item VARCHAR NOT NULL, price DECIMAL(9, 2) CHECK (price > 0), UNIQUE (item, price)
    );
    ALTER TABLE scratch.shop.orders ADD COLUMN status VARCHAR;
    ALTER TABLE scratch.shop.orders ALTER COLUMN status SET DEFAULT 'new';
    INSERT INTO scratch.shop.orders (id, item, price) VALUES (1, 'tea', 2.50) RETURNING *;
    INSERT INTO scratch.shop.orders (id, item, price) VALUES (1, 'cake', 4.00);
    ALTER TABLE scratch.shop.orders RENAME COLUMN item TO article;
    ALTER TABLE scratch.shop.orders ALTER COLUMN status TYPE VARCHAR USING upper(status);
    SELECT * FROM scratch.shop.orders;
    DROP TABLE scratch.shop.orders;
    DROP SCHEMA scratch.shop;

The second INSERT fails because the key exists. A DEFAULT in CREATE TABLE or ADD COLUMN would be lost, because DuckDB's
client does not send it; use SET DEFAULT. Press Ctrl-C to stop the server; all data is lost then.
"""

import sys

import pyarrow as pa

from skiway.airport import Catalog, CreateTable, serve
from skiway.airport.memory import MemoryCatalog

# In Python, a table can also have defaults and comments, which DuckDB does not send.
PALETTES = CreateTable(
    "palettes",
    pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"comment": "chosen by the painter"}),
            pa.field("name", pa.string(), metadata={"default": "'unnamed'"}),
            pa.field("colours", pa.list_(pa.string())),
        ]
    ),
    comment="created in Python, with a default and a comment",
    primary_key=("id",),
    checks=("len(colours) <= 8",),
)


def catalog() -> Catalog:
    """An in-memory database with a schema and two tables."""
    scratch = MemoryCatalog("scratch")
    public = scratch.create_schema("public", comment="created in Python")
    public.add_table(
        "colours", pa.table({"name": ["red", "blue"], "hex": ["#ff0000", "#0000ff"]}), primary_key=["name"]
    )
    public.create_table(PALETTES)
    return scratch


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
