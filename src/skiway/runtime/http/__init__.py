"""The HTTP server of a process: `door` is the server and the explorer on it, and `connections` limits its connections."""
