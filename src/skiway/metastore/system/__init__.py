"""System objects: the functions, operators, types and casts that each engine provides.

`objects` loads and checks the definitions in `builtins/`, and selects those of an engine's version.
"""

from skiway.metastore.system.objects import EngineCatalogs, SystemFiles
