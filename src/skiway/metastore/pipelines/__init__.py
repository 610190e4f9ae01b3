"""Pipelines: tables that are derived from other tables by queries or functions, and refreshed when those have changed.

    projects        the files of a pipeline, and the order of its tables
    python_files    the functions in a Python file that make tables, and what they read
    spark_sql       the SQL and the functions that queries may use, and the text that Spark gets
    lineage         what a table was made from, stored in the snapshot that has the rows
    inputs          the tables and views that a query reads, as the owner of the pipeline may read them
    refreshing      one run: what has to be refreshed and why, and the commits
    branching       runs on branches of the lake
    api             the calls of `PipelineService`, the jobs, and their schedule

Nothing here needs Spark. `spark_jobs` runs the queries, and `spark_queries` the Python functions.
"""
