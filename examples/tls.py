r"""TLS: a server with a certificate, which may also be reached from other machines.

For a try on one machine, make a certificate first:

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem

Start the server with `python examples/tls.py server.pem server.key [location]`. DuckDB trusts the roots that gRPC comes
with, and has no option for others; the environment variable of gRPC names them. Start it and type:

    GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=server.pem duckdb
    INSTALL airport FROM community; LOAD airport;
    ATTACH 'vault' (TYPE airport, LOCATION 'grpc+tls://localhost:50051');
    SELECT * FROM vault.safe.notes;

Ctrl-C ends the server.
"""

import sys

import pyarrow as pa

from skiway.airport import Catalog, CatalogBuilder, Tls, serve

LOCATION = "grpc+tls://localhost:50051"


def catalog() -> Catalog:
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
