"""What the files of a pipeline say about their tables besides queries, and what a refresh does because of it.

`declarations` reads the YAML files. `expectations` judges rows, `incremental` says which rows are made again, `statements` puts both into
the queries of a refresh, and `publishing` commits the result. `loads` judges the rows of copies with the same rules.
"""
