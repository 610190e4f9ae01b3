"""Copies: connectors that load the rows of a source into managed tables, first all rows and then what has changed.

    positions   how far a table has been loaded, stored in the snapshot that has the rows, and which rows of a database are new
    rows        the work on files that many processes share, and how a table follows the columns of its source
    keys        keys of rows, which tasks read and join
    merging     commits of rows together with the deletion of the rows that have their keys
    copying     one load of one table: its steps, and their commits
    file_tables what has changed in a table whose rows are in files
    staging     steps that are published together

`connectors.specs` has the rules for copies. Nothing here knows Spark: `spark_jobs` distributes the work, and reads databases.
"""
