"""The handlers of the Iceberg REST catalog: one function per route, grouped by what the routes are about."""
