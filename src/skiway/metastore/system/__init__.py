"""System objects: the functions, operators, types and casts that each engine provides.

`EngineCatalogs` answers for an engine and version; `files` loads the definitions in `builtins/`.
"""

from skiway.metastore.system.files import SystemFiles
from skiway.metastore.system.objects import EngineCatalogs

__all__ = ["EngineCatalogs", "SystemFiles"]
