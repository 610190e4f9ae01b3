"""The explorer: web pages that show the lake, at `/` on the HTTP port.

Pages are rendered by the server and work without JavaScript. Scripts of this package add the tree, Ctrl+K and
sorting; htmx adds live progress. Nothing is loaded from elsewhere.

The explorer is a client of its own server: every page makes calls of the metastore and of Airport with the credentials of
its visitor. So it shows nothing that the visitor could not read with DuckDB or the command line, and each call is
authorized, counted and audited like any other.

    app          the ASGI app: routes, sessions, headers, errors
    visits       a request of a visitor: its clients, its parameters
    logins       logging in with a token or at an identity provider, sessions, and tokens against forged requests
    rendering    templates, and their filters
    navigation   the groups of pages on the left side
    charts       bars, lines and the graphs of pipelines as SVG; histograms are in `distributions`, lineages in `graphs`
    values       values in cells: geometries, nested values, and text
    pages        one module per group of pages: what each shows, as plain data
"""

from skiway.web.app import Explorer

__all__ = ["Explorer"]
