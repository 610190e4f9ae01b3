"""What all packages share. Its modules know nothing of catalogs and tables.

Import the module that you need; the package itself imports nothing.
"""
