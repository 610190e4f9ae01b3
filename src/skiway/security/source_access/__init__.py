"""What this process may open for connectors: files, object stores, web services and databases.

Operators decide with the settings `sources`. One `SourceAccess` is built from them and asked before anything is opened,
and again for every location in the metadata of a table. Callers can narrow what it permits and never widen it.

    access         locations as values, and `SourceAccess`: the decision
    connections    connections to permitted addresses: over HTTP, to Hive Metastores, Airport servers and object stores
    databases      the addresses of SQL catalogs, and of databases whose rows are copied
"""

from skiway.security.source_access.access import Location, SourceAccess, location, web_address
