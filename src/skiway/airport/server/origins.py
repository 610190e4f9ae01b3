"""Where the code of an author is, for the log: the place in it that failed, or the definition of the object."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from pathlib import Path
from types import CodeType
from typing import Final

import grpc
import pyarrow as pa

import skiway

__all__ = ["author_location"]

_LIBRARIES: Final = [Path(str(library.__file__)).parent for library in (skiway, grpc, pa)]
_CYTHON: Final = (".pyx", ".pxi")
_STDLIB: Final = Path(sysconfig.get_path("stdlib"))
_ENTRIES: Final = ("scan", "execute", "open", "function_calls")  # the methods that authors write
_WRITES: Final = ("insert", "update", "delete")


def author_location(error: BaseException, target: object, operation: str = "scan") -> str:
    """`/home/ada/app.py:12 (people)`: the author's code that `error` passed through, else the definition of `target`.

    It is the outermost such place: the author's own code, not a library that it called. "" if there is none.
    """
    return _in_traceback(error) or _definition(target, operation)


def _in_traceback(error: BaseException | None) -> str:
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if _is_author(frame.f_code.co_filename):
                return f"{frame.f_code.co_filename}:{line} ({frame.f_code.co_name})"
        error = error.__cause__
    return ""


def _definition(target: object, operation: str) -> str:
    if target is None:
        return ""
    names = (*((operation, f"{operation}_batch", "write") if operation in _WRITES else ()), *_ENTRIES)
    methods = (getattr(type(target), name, None) for name in names)
    function = getattr(target, "__wrapped__", None) or next(filter(None, methods), None)
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None) if function else None
    if not isinstance(code, CodeType) or not _is_author(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_qualname})"


def _is_author(filename: str) -> bool:
    path = Path(filename)
    if any(map(path.is_relative_to, _LIBRARIES)) or path.suffix in _CYTHON or filename.startswith("<frozen"):
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or not path.is_relative_to(_STDLIB)
