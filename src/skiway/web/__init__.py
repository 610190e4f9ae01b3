"""The explorer: web pages that show the lake, at `/` on the HTTP port.

Pages are rendered by the server and work without JavaScript. htmx, a file of this package, adds search-as-you-type and
live progress. Nothing is loaded from elsewhere.

The explorer is a client of its own server: every page makes calls of the metastore and of Airport with the credentials of
its visitor. So it shows nothing that the visitor could not read with DuckDB or the command line, and each call is
authorized, counted and audited like any other.

    app          the ASGI app: routes, sessions, headers, errors
    visits       a request of a visitor: its clients, its parameters
    logins       logging in with a token or at an identity provider, sessions, and tokens against forged requests
    rendering    templates, and their filters
    charts       histograms, bars and timelines as SVG
    pages        one module per group of pages: what each shows, as plain data
"""

from skiway.web.app import Explorer

__all__ = ["Explorer"]
