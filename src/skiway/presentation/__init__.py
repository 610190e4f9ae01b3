"""What the command line, the explorer and the MCP server show alike.

Importing the first module is cheap, as the command line needs it; the second imports the clients.

    tables      tables and columns with their statistics, as flat records; numbers of bytes with units
    results     the first rows of a query, values for JSON, and clients of several callers
"""
