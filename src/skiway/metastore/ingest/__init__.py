"""Copies: connectors that load the rows of a source into managed tables, first all rows and then what has changed.

    positions   how far a table has been loaded, stored in the snapshot that has the rows, and which rows of a database are new
    rows        the work on files that many processes share, and how a table follows the columns of its source
    copying     one load of one table: what has changed in the source, and the commit

`connectors.specs` has the rules for copies. Nothing here knows Spark: `spark_jobs` distributes the work, and reads databases.
"""
