"""The gRPC server of a process: `door` is the server, and `services` are what it serves."""
