"""Copies: connectors that load the rows of a source into managed tables, first all rows and then what has changed.

    settings    what a connector says about its copies, and the rules for one table
    changes     what has changed in a source since the last load
    cursors     which rows of a table in a database are new
    positions   how far a table has been loaded, stored in the snapshot that has the rows
    columns     how a table follows the columns of its source
    targets     the managed tables that copies write to
    rows        the work on files that many processes share: write rows, read keys, find rows by key
    copying     one load of one table, from the position to the commit

Nothing here knows Spark. `pipeline.ingest` distributes the work, and reads databases.
"""
