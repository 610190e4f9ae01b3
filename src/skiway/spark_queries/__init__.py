"""Code of callers on Spark: `lake.skiway.query('SELECT …', engine => 'spark')`, and Python functions of pipelines.

Such code can do more than read tables, so each query or function has processes of its own, which know none of the server's secrets:

    server                engine       limits, waiting queries, the functions of jobs
                          process      starts the supervisor, and reads the results
      |  pipe
    supervisor            supervisor   limits memory, ends all processes of the query, removes its files, and has the
      |                                rules of confinement
      |
    worker                worker       confines itself, starts Spark, reads the tables over Airport with a token of the
      |                                caller that can only read and expires, and runs the query or function
    Java, Python tasks

Importing this package neither loads nor starts Spark.
"""
