"""Pipelines: tables that are derived from other tables by queries, and refreshed when those have changed.

    projects    the files of a pipeline: `pipeline.yml`, and one query in a `.sql` file for each table
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

Nothing here knows Spark. `pipeline.derive` runs the queries.
"""
