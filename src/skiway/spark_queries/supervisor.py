"""The supervisor of a query or function: `python -m skiway.spark_queries.supervisor MEMORY_BYTES` starts the worker and ends it.

With `--protect=UID`, the worker cannot change attributes of files outside of its folder. If that is not possible, it does not
start, unless the supervisor runs as another user than UID, that of the server.

It passes its input on to the worker. The query ends when the input ends, because the server has closed it or was killed, when
the worker ends, or when the query uses too much memory or too many processes. Then the supervisor kills all processes of the
query, also those that left its session, because they become its own children; and it removes the files of the query. The worker
is confined and the supervisor is not, so no code of the query can stop the supervisor.

The worker is confined to its programs, its folder and a few ports, with Linux' Landlock and a mount namespace. The limits hold for the
process and everything that it starts, and cannot be removed. They need no privileges:

- files: programs and libraries can be read, the folder of the query can be changed, and nothing else can be opened;
- attributes of files, which Landlock does not cover, such as permissions, owners, times and extended attributes: in a mount
  namespace of its own, everything but the folder of the query is read-only. This needs user namespaces, or root;
- network: TCP connections go to the listed ports only (Linux 6.7);
- other processes cannot be traced, so their environment and memory cannot be read, and cannot be signalled (Linux 6.12);
- root has none of its capabilities.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from skiway.errors import PreconditionFailed

NEEDED_ABI: Final = 4
"""The version of Landlock that can limit the network, of Linux 6.7."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION: Final = 1
_PATH_RULE, _PORT_RULE = 1, 2
_NO_NEW_PRIVILEGES: Final = 38
_DROP_CAPABILITY: Final = 24
_CAPABILITY_VERSION: Final = 0x20080522

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_BEFORE: Final = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_ALL_FILES: Final = _ALL_BEFORE | _REFER | _TRUNCATE
_READ: Final = _EXECUTE | _READ_FILE | _READ_FOLDER
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_CONNECT: Final = 1 << 1
_SCOPES: Final = 0b11  # abstract sockets and signals

_MOUNT_SETATTR: Final = 442
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_BIND, _PRIVATE = 0x1000, 0x40000
_WORKING_FOLDER, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1

_NAMESPACES: Final = (_NEW_USERS | _NEW_MOUNTS, _NEW_MOUNTS)
"""What to ask for, and what only root can have, in this order."""

_PROGRAMS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
)
_SYSTEM_FILES: Final = (
    *(
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/resolv.conf",
        "/etc/gai.conf",
    ),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/alternatives", "/etc/mime.types"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki"),
)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users"))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 if it has none, or it is turned off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)))


def unconfinable() -> PreconditionFailed:
    """The error that this system cannot confine processes."""
    abi = landlock_abi()
    return PreconditionFailed(
        f"queries on Spark are confined with Landlock, version {NEEDED_ABI} or newer (Linux 6.7), and this system has "
        f"{f'version {abi}' if abi else 'none'}: isolate them with sql.spark.command, and then set sql.spark.confined=false",
        key="spark.confinement",
    )


def unprotected() -> PreconditionFailed:
    """The error that this system cannot protect the attributes of files."""
    return PreconditionFailed(
        "code on Spark can change permissions, owners, times and extended attributes of files that belong to the user of this "
        "process, because it may not create mount namespaces: allow user namespaces on this system, run the code as another "
        "user with sql.spark.command, or accept the risk with sql.spark.unprotected_attributes=true",
        key="spark.attributes",
    )


@cache
def can_protect_attributes() -> bool:
    """Whether this user can create mount namespaces, on this system."""
    if not sys.platform.startswith("linux"):
        return False
    attempt = f"import ctypes, sys; sys.exit(all(ctypes.CDLL(None).unshare(each) for each in {_NAMESPACES}))"
    return subprocess.run([sys.executable, "-I", "-S", "-c", attempt], check=False).returncode == 0  # noqa: S603


def protect_attributes(folder: Path) -> None:
    """Make everything but a folder read-only for this process, and what it starts. Raise OSError if that is not possible.

    The process must have a single thread. It must then replace itself with a program, because the one that it runs, and files
    that it has opened before, stay as they were.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc().unshare(_NAMESPACES[0]) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    else:
        _checked(_libc().unshare(_NAMESPACES[1]))
    path = os.fsencode(folder)
    _set_mount(b"/", _MountAttributes(propagation=_PRIVATE), recursive=True)  # later mounts of others do not appear
    _checked(_libc().mount(path, path, None, ctypes.c_ulong(_BIND), None))
    _set_mount(b"/", _MountAttributes(set=_READ_ONLY), recursive=True)
    _set_mount(path, _MountAttributes(clear=_READ_ONLY))
    os.chdir(folder)


def _set_mount(path: bytes, attributes: _MountAttributes, *, recursive: bool = False) -> None:
    flags, size = _RECURSIVE if recursive else 0, ctypes.c_size_t(ctypes.sizeof(attributes))
    _checked(_libc().syscall(_MOUNT_SETATTR, _WORKING_FOLDER, path, flags, ctypes.byref(attributes), size))


def confine(folder: Path, *, readable: Iterable[Path] = (), ports: Iterable[int] | None = None) -> None:
    """Confine this thread, and what it starts from now on. With `ports` None, connections are not limited."""
    abi = landlock_abi()
    if abi < NEEDED_ABI:
        raise unconfinable()
    network = 0 if ports is None else _CONNECT
    wanted = _Ruleset(_ALL_FILES | (_IOCTL if abi >= 5 else 0), network, _SCOPES if abi >= 6 else 0)
    size = ctypes.sizeof(wanted) if abi >= 6 else 16  # older versions do not know scopes
    ruleset = _checked(_libc().syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), 0))
    try:
        for place in (
            *map(Path, _PROGRAMS),
            *map(Path, _SYSTEM_FILES),
            *_own_programs(),
            *_settings_of_java(),
            *readable,
        ):
            _allow(ruleset, place, _READ, wanted.files)
        for device in _DEVICES:
            _allow(ruleset, Path(device), _READ_FILE | _WRITE_FILE, wanted.files)
        _allow(ruleset, folder, wanted.files, wanted.files)
        for port in ports or ():
            rule = _PortRule(_CONNECT, port)
            _checked(_libc().syscall(_ADD_RULE, ruleset, _PORT_RULE, ctypes.byref(rule), 0))
        _drop_capabilities()
        _checked(_libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _checked(_libc().syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def ephemeral_ports() -> range:
    """The ports that the kernel chooses for sockets without one, such as those between Spark's Java and Python."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(first), int(last) + 1)


def _drop_capabilities() -> None:
    """Give up the capabilities of root, if this is root: with them, the environment of other processes can be read."""
    for number in range(64):
        _libc().prctl(_DROP_CAPABILITY, number, 0, 0, 0)  # fails for numbers that do not exist, and for other users
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _checked(_libc().capset(ctypes.byref(header), ctypes.byref(none)))


def _own_programs() -> list[Path]:
    """Where this Python and its packages are."""
    return [Path(each) for each in {sys.prefix, sys.base_prefix, *sys.path} if each and Path(each).parent != Path(each)]


def _settings_of_java() -> list[Path]:
    """Where Debian keeps the files that its Java links to."""
    return list(Path("/etc").glob("java*"))


def _allow(ruleset: int, place: Path, allowed: int, handled: int) -> None:
    try:
        descriptor = os.open(place.resolve(), os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on every system
    try:
        of_kind = allowed if place.is_dir() else allowed & _OF_FILES
        rule = _PathRule(of_kind & handled, descriptor)
        _checked(_libc().syscall(_ADD_RULE, ruleset, _PATH_RULE, ctypes.byref(rule), 0))
    finally:
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


OUT_OF_MEMORY: Final = 70
"""The exit code after a query has used too much memory."""

TOO_MANY_PROCESSES: Final = 71
"""The exit code after a query has started too many processes."""

UNPROTECTED: Final = 72
"""The exit code if the attributes of files cannot be protected."""

MOST_PROCESSES: Final = 200
"""How many processes a query may have. Spark has one for Java, and a few for Python in each task."""

_PROTECT: Final = "--protect="
_WATCH_S: Final = 0.25
_ADOPT_ORPHANS: Final = 36
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> None:
    """Run the worker until its end, or that of the input."""
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    protected_from: int | None = None
    if arguments[0].startswith(_PROTECT):
        protected_from, arguments = int(arguments[0].removeprefix(_PROTECT)), arguments[1:]
    most = int(arguments[0])
    command = arguments[1:] or [sys.executable, "-P", "-m", "skiway.spark_queries.worker"]
    folder = Path(tempfile.mkdtemp(prefix="skiway-spark-query-"))

    def protect() -> None:
        if protected_from is None:
            return
        try:
            protect_attributes(folder)
        except OSError as error:
            print(f"the attributes of files cannot be protected: {error}", file=sys.stderr, flush=True)  # noqa: T201
            if protected_from == os.geteuid():
                os._exit(UNPROTECTED)

    worker = subprocess.Popen(  # noqa: S603 - a fixed command, except in tests
        [*command, str(folder)],
        preexec_fn=protect,
        stdin=subprocess.PIPE,
        env=_environment(folder),
        cwd=folder,
    )
    ended = threading.Event()
    threading.Thread(target=_pass_on, args=(worker, ended), name="input", daemon=True).start()
    code: int | None = None
    while code is None and not ended.wait(_WATCH_S):
        code = worker.poll()
        if code is not None:
            break
        running = _descendants()
        if len(running) > MOST_PROCESSES:
            code = TOO_MANY_PROCESSES
        elif _used_bytes(running) > most:
            code = OUT_OF_MEMORY
    _kill_all()
    worker.wait()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code is not None and code >= 0 else 1)  # the thread may wait for input


def _environment(folder: Path) -> dict[str, str]:
    """The variables of the worker: those that programs need to start, and none of the server's."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
    places = dict.fromkeys(("HOME", "TMPDIR", "SPARK_LOCAL_DIRS", "SPARK_CONF_DIR"), str(folder))
    return {**kept, **places, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _pass_on(worker: subprocess.Popen[bytes], ended: threading.Event) -> None:
    assert worker.stdin is not None
    try:
        while data := os.read(0, 1 << 16):
            worker.stdin.write(data)
            worker.stdin.flush()
    except OSError:
        pass  # the worker has ended
    finally:
        ended.set()


def _descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                parent = int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(place.name))
    found, new = list[int](), [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def _used_bytes(processes: Iterable[int]) -> int:
    """The memory of processes. Pages that they share are counted for each of them."""
    pages = 0
    for each in processes:
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * _PAGE


def _kill_all() -> None:
    """Kill everything below this process, until nothing is left that could start more.

    Processes are stopped before any is killed. So they start no new ones while others are killed.
    """
    while left := _descendants():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in left:
                try:
                    os.kill(each, number)
                except ProcessLookupError:
                    continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
