"""Code of callers on Spark: `lake.skiway.query('SELECT …', engine => 'spark')`, and Python functions of pipelines.

Such code can do more than read tables, so each query or function has processes of its own, which know none of the server's secrets:

    server                engine       limits, waiting queries, results
                          functions    the functions of a job, and their results
      |  pipe
    supervisor            supervisor   limits memory, ends all processes of the query, removes its files
      |
    worker                worker       confines itself, starts Spark, and reads the tables over Airport with a token of the
      |                                caller that can only read, and expires
                          python_code  runs the code of a function
    Java, Python tasks

Importing this package neither loads nor starts Spark.
"""
