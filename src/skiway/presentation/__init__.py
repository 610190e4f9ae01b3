"""What the command line, the explorer and the MCP server show alike.

Importing the first two modules is cheap, as the command line needs it; the others import the clients.

    table_records   tables and columns with their statistics, as flat records
    sizes           numbers of bytes with units
    results         the first rows of a query, and values for JSON
    open_clients    clients of several callers
"""
