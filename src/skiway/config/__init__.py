"""The settings of a process: one immutable object, loaded from the command line, the environment, a file and defaults.

>>> from skiway.config import load
>>> settings = load(environ={"SKIWAY__GC__CAS__MIN_AGE_MS": "60000"}, flags={"kv": "memory"})
>>> settings.gc.cas.min_age_ms, settings.kv.backend, settings.server.grpc.address
(60000, 'memory', '127.0.0.1:50051')
"""

from skiway.config.fields import Setting
from skiway.config.loading import FILE_NAME, load
from skiway.config.settings import Settings, describe, replaced, shown, without_effect

__all__ = [
    "FILE_NAME",
    "Setting",
    "Settings",
    "describe",
    "load",
    "replaced",
    "shown",
    "without_effect",
]
