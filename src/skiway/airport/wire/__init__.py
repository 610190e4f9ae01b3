"""The Airport protocol as bytes: frames, payloads, headers and type names, shared by server and client."""
