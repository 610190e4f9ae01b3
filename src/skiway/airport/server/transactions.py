"""Units of work: what a writing statement runs in, and the actions that begin and end transactions."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from skiway.airport.catalog import Transactional, TransactionManager, TransactionStatus
from skiway.airport.request import Request
from skiway.airport.server.host import Host
from skiway.airport.wire.payloads import (
    CatalogRequest,
    TransactionInfo,
    TransactionRequest,
    TransactionState,
    decode,
    encode,
)
from skiway.errors import InvalidArgument, NotFound, Unsupported

__all__ = ["TRANSACTION_ACTIONS"]


def create_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """An id for the statements of one transaction; catalogs without transactions have none."""
    asked = _read(body, CatalogRequest, "create_transaction") if body else CatalogRequest()
    _, catalog = host.open_catalog(request, asked.catalog_name)
    transaction_id = catalog.transactions.begin() if isinstance(catalog, Transactional) else None
    if _is_json(body):
        return _json({"status": "success", "transaction_id": transaction_id})
    return encode(TransactionInfo(transaction_id))


def get_transaction_status(host: Host, request: Request, body: bytes) -> bytes:
    """Where a transaction is: active, committed or aborted."""
    manager, asked = _manager(host, request, body, "get_transaction_status")
    status = manager.status(asked.transaction_id)
    return _told(body, asked.transaction_id, status)


def commit_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """Make the work of a transaction durable."""
    manager, asked = _manager(host, request, body, "commit_transaction")
    _known(manager, asked.transaction_id)
    manager.commit(asked.transaction_id)
    return _told(body, asked.transaction_id, manager.status(asked.transaction_id))


def rollback_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """Undo the work of a transaction."""
    manager, asked = _manager(host, request, body, "rollback_transaction")
    _known(manager, asked.transaction_id)
    manager.rollback(asked.transaction_id)
    return _told(body, asked.transaction_id, manager.status(asked.transaction_id))


def _manager(host: Host, request: Request, body: bytes, what: str) -> tuple[TransactionManager, TransactionRequest]:
    asked = _read(body, TransactionRequest, what)
    request, catalog = host.open_catalog(request, asked.catalog_name)
    if not isinstance(catalog, Transactional):
        raise Unsupported(f"catalog {request.catalog!r} has no transactions")
    if not asked.transaction_id:
        raise InvalidArgument(f"{what} needs a transaction_id")
    return catalog.transactions, asked


def _known(manager: TransactionManager, transaction_id: str) -> None:
    if manager.status(transaction_id) is None:
        raise NotFound(f"transaction {transaction_id!r} is not known here, or has expired")


def _told(body: bytes, transaction_id: str, status: TransactionStatus | None) -> bytes:
    if _is_json(body):
        return _json(
            {"status": "success", "transaction_id": transaction_id, "transaction_status": status and str(status)}
        )
    return encode(TransactionState(status=str(status) if status else "", exists=status is not None))


def _is_json(body: bytes) -> bool:
    return body.lstrip()[:1] == b"{"


def _read(body: bytes, kind: Any, what: str) -> Any:
    """The body in either dialect: MessagePack as DuckDB writes it, or JSON."""
    if not _is_json(body):
        return decode(body, kind, what)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"malformed body of {what}: {error}") from error


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


TRANSACTION_ACTIONS: Final[dict[str, Any]] = {
    "create_transaction": create_transaction,
    "get_transaction_status": get_transaction_status,
    "commit_transaction": commit_transaction,
    "rollback_transaction": rollback_transaction,
}
