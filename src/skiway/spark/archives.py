"""The archives from which Spark's Python processes import modules."""

from __future__ import annotations

import os
import sys
from zipimport import zipimporter

__all__ = ["forget_archives"]


def forget_archives() -> None:
    """Remove the finders of archives in PYTHONPATH, where Spark puts its own, from the cache of the import system.

    Spark begins each task with `importlib.invalidate_caches()`. Before Python 3.13, each finder of an archive then reads the
    directory of the archive again (issue 103200 of CPython). Spark's archives contain thousands of files and have a finder for
    each imported package, so this takes 0.15 s of CPU time: 73% of what Python used to read a million rows of two columns.
    Without finders there is nothing to read. An import that needs a finder creates it again, with the directory that is still
    in memory. Archives that an application adds are not in PYTHONPATH, and are read again.
    """
    unchanging = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in unchanging:
            sys.path_importer_cache.pop(path, None)
