"""System objects: the functions, operators, types and casts that each engine provides.

`objects` loads the definitions in `builtins/` and selects those of an engine's version; `validation` checks the files.
"""

from skiway.metastore.system.objects import EngineCatalogs, SystemFiles
