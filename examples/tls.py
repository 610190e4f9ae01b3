r"""A server with TLS, which other machines may reach.

To try it on one machine, create a certificate first:

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem

Start the server with `python examples/tls.py server.pem server.key [location]`. DuckDB trusts the root certificates of gRPC
and has no option for others, but an environment variable of gRPC does. Start DuckDB with it:

    GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=server.pem duckdb
    INSTALL airport FROM community; LOAD airport;
    ATTACH 'vault' (TYPE airport, LOCATION 'grpc+tls://localhost:50051');
    SELECT * FROM vault.safe.notes;

Press Ctrl-C to stop the server.
"""

import sys

import pyarrow as pa

from skiway.airport import Catalog, CatalogBuilder, Tls, serve

LOCATION = "grpc+tls://localhost:50051"


def catalog() -> Catalog:
    """A catalog with one table."""
    vault = CatalogBuilder("vault")

    @vault.schema("safe").table(schema=pa.schema({"note": pa.string()}))
    def notes(_scan):
        return pa.table({"note": ["nobody on the way can read this"]})

    return vault.build()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(__doc__, flush=True)
    certificate, key, location = [*sys.argv[1:4], LOCATION][:3]
    serve(catalog(), location, tls=Tls(certificate, key))
