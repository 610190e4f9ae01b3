"""What this process may open for connectors: files, object stores, web services and databases.

Operators decide with the settings `sources`. One `SourceAccess` is built from them and asked before anything is opened,
and again for every location in the metadata of a table. Callers can narrow what it permits and never widen it.

    policy         `SourceAccess`: the decision
    locations      files on this machine or in object stores, as values
    web_sessions   sessions of `requests` that connect only to permitted addresses
    relay          the same for clients of object stores, which offer no way to check an address
    connections    connections to permitted addresses
    databases      the addresses of SQL catalogs
    hive           the addresses of Hive Metastores
    jdbc           the addresses of databases whose rows are copied
"""

from skiway.security.source_access.locations import Location, location, web_address
from skiway.security.source_access.policy import SourceAccess

__all__ = ["Location", "SourceAccess", "location", "web_address"]
