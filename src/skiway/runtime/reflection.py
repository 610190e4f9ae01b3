"""gRPC reflection, which lists the services and their messages: the service `v1`, and `v1alpha` for older clients.

Both versions have the same messages under different names, so the library's servicer of `v1alpha` answers both. Callers must
authenticate, or come from a network of the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

from skiway.doors import GRPC_CODES, status_in
from skiway.errors import SkiwayError
from skiway.runtime.operators import Operators
from skiway.runtime.side_calls import SideCalls

__all__ = ["SERVICE_V1", "enable_reflection"]

ALPHA: Final = "grpc.reflection.v1alpha"
STABLE: Final = "grpc.reflection.v1"
SERVICE_V1: Final = f"{STABLE}.ServerReflection"


def enable_reflection(services: Sequence[str], server: grpc.Server, operators: Operators) -> SideCalls:
    """Add the reflection services to `server`, for callers that `operators` admits. They list `services` and themselves.

    They run on the threads that are returned.
    """
    names = (*services, reflection.SERVICE_NAME, SERVICE_V1)
    pool = descriptor_pool.Default()
    _describe_v1(pool)
    servicer: Any = reflection.ReflectionServicer(service_names=names, pool=pool)

    def serve(requests: Iterator[Any], client: grpc.ServicerContext) -> Iterator[Any]:
        headers = {name: value for name, value in client.invocation_metadata() if isinstance(value, str)}
        try:
            operators.admit_grpc(headers, client.peer())
        except SkiwayError as error:
            client.abort(status_in(GRPC_CODES, error), error.message)
        yield from servicer.ServerReflectionInfo(requests, client)

    calls = SideCalls("reflection")
    handler = calls.streaming(
        serve,
        reflection_pb2.ServerReflectionRequest,
        answers=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, SERVICE_V1):
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})])
    return calls


def _describe_v1(pool: Any) -> None:
    """Add the description of `v1`, which is that of `v1alpha` with another package, so that clients can ask for it."""
    renamed = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(renamed)
    renamed.name = "grpc/reflection/v1/reflection.proto"
    renamed.package = STABLE
    for message in renamed.message_type:
        for field in filter(lambda each: each.type_name, message.field):
            field.type_name = field.type_name.replace(f".{ALPHA}.", f".{STABLE}.")
    for service in renamed.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{STABLE}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{STABLE}.")
    pool.AddSerializedFile(renamed.SerializeToString())
