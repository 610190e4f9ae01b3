"""A program that tries to leave its confinement. It prints what succeeded, and the errors of what did not."""

ATTACKS = """
import ctypes, errno, json, os, signal, socket, sys
home, server, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def opened(place, mode="rb"):
    with open(place, mode) as file:
        return file.read(1) if "r" in mode else file.write("x")

def connect():
    socket.create_connection(("127.0.0.1", port), timeout=10).close()

secret = f"{home}/secret"

def through_a_descriptor():
    handle = os.open(secret, os.O_PATH)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o666)
    finally:
        os.close(handle)

def in_other_namespaces():
    # A process in a new user namespace has all capabilities there, and may change mounts of a new mount namespace.
    child = os.fork()
    if not child:
        try:
            libc = ctypes.CDLL(None)
            libc.unshare(0x10020000)
            libc.syscall(442, -100, b"/", 0x8000, (ctypes.c_uint64 * 4)(0, 1, 0, 0), ctypes.c_size_t(32))
            libc.mount(None, b"/", None, ctypes.c_ulong(0x1020), None)
            os.chmod(secret, 0o666)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("the child failed")

def same_mode(place):
    os.chmod(place, os.stat(place).st_mode & 0o7777)

attributes = {
    "permissions": lambda: os.chmod(secret, 0o666),
    "permissions of the home": lambda: os.chmod(home, 0o777),
    "permissions through the root of the process": lambda: os.chmod(f"/proc/self/root{secret}", 0o666),
    "permissions through the working folder": lambda: os.chmod(f"/proc/self/cwd/{os.path.relpath(secret)}", 0o666),
    "permissions through a descriptor": through_a_descriptor,
    "permissions in other namespaces": in_other_namespaces,
    "permissions of the program": lambda: same_mode("/proc/self/exe"),
    "permissions of the program of the parent": lambda: same_mode(f"/proc/{os.getppid()}/exe"),
    "owner": lambda: os.chown(secret, os.getuid(), os.getgid()),
    "times": lambda: os.utime(secret, (0, 0)),
    "extended attribute": lambda: os.setxattr(secret, "user.attack", b"x"),
}
attempts = {
    "own attributes": lambda: (opened("mine", "w"), os.chmod("mine", 0o600), os.utime("mine", (0, 0))),
    "link to the secret": lambda: os.link(secret, "linked"),
    "link in the home": lambda: os.link(secret, f"{home}/linked"),
    "other name of the secret": lambda: os.rename(secret, f"{home}/renamed"),
    "secret as an own file": lambda: os.rename(secret, "moved"),
    **{f"attributes: {name}": attempt for name, attempt in attributes.items()},
    "own file": lambda: opened("own.txt", "w"),
    "secret file": lambda: opened(f"{home}/secret"),
    "list of the home": lambda: os.listdir(home),
    "new file in the home": lambda: opened(f"{home}/new", "w"),
    "removal of the secret": lambda: os.unlink(f"{home}/secret"),
    "settings of the system": lambda: os.listdir("/etc"),
    "environment of the server": lambda: opened(f"/proc/{server}/environ"),
    "memory of the server": lambda: opened(f"/proc/{server}/mem"),
    "files of the server": lambda: os.readlink(f"/proc/{server}/fd/1"),
    "signal to the server": lambda: os.kill(server, signal.SIGCONT),
    "connection to the store": connect,
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "done"
    except OSError as error:
        outside = error.errno in (errno.EROFS, errno.EXDEV)
        found[name] = "OtherMount" if outside else type(error).__name__
print(json.dumps(found), flush=True)
"""
