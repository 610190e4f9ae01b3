"""Pipelines: tables that are derived from other tables by queries or functions, and refreshed when those have changed.

    projects    the files of a pipeline: `pipeline.yml`, queries in `.sql` files, and functions in `.py` files
    python_files    the functions in a Python file that make tables, and what they read
    spark_sql   the SQL that queries may use, and the text that Spark gets
    functions   the functions that queries may call
    queries     one query: the tables that it reads, and whether it works row by row
    graph       the order of the tables, by what they read
    column_lineage  from which columns of the inputs each column is computed
    positions   what a table was made from, stored in the snapshot that has the rows
    owners      whose rights the runs have
    inputs      the tables that a query reads, as the owner of the pipeline may read them
    views       the queries of views, in the places of their names
    refreshing  one run: what has to be refreshed and why, and the commits
    schedule    runs at intervals, or when an input has changed
    api         the calls of `PipelineService`, and the jobs

Nothing here needs Spark. `pipeline.derive` runs the queries, and `spark_queries.functions` the Python functions.
"""
