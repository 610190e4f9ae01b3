"""gRPC: the services of `proto/skiway/v1`, served from the metastore.

`Door(access).add_to(server)` adds all of them to a grpcio server. `services` says which function of the metastore each
method calls and who may call it.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.rpc.door import Door
from skiway.rpc.methods import Method, Rule, Service
from skiway.rpc.services import all_services

__all__ = ["Door", "Method", "Rule", "Service", "all_services"]
