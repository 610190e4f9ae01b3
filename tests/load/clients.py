"""Some clients in one process: `python -m load.clients`. A JSON object on standard input says which, and how to connect.

It runs until standard input is closed, then prints what the clients measured, by account.
"""

from __future__ import annotations

import json
import sys
import threading

from load.statements import LoadClient, as_json


def main() -> None:
    order = json.loads(sys.stdin.readline())
    ended = threading.Event()
    clients = [
        (account, LoadClient(order["addresses"], order["tokens"][account], name, seed))
        for account, name, seed in order["clients"]
    ]
    threads = [threading.Thread(target=client.run, args=(ended,)) for _, client in clients]
    for thread in threads:
        thread.start()
    print("running", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(json.dumps([[account, as_json(client.measured)] for account, client in clients]))


if __name__ == "__main__":
    main()
