"""Resources that callers name: accounts, catalogs, namespaces, tables, views and snapshots.

Each module has the calls of one service. `directory` resolves names to ids and ids to names.
"""
