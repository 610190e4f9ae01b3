"""What the command line and the explorer show alike.

Importing this package is cheap: the libraries of the clients are imported only for type checks, or when they are needed.

    table_records   tables and columns with their statistics, as flat records
    sizes           numbers of bytes with units
"""
