"""A program that tries to leave its confinement. It prints what succeeded, and the errors of what did not."""

ATTACKS = """
import json, os, signal, socket, sys
home, server, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def opened(place, mode="rb"):
    with open(place, mode) as file:
        return file.read(1) if "r" in mode else file.write("x")

def connect():
    socket.create_connection(("127.0.0.1", port), timeout=10).close()

attempts = {
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
        found[name] = type(error).__name__
print(json.dumps(found), flush=True)
"""
