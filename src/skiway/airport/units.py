"""Units of work: what a writing statement runs in, and the actions that begin and end transactions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skiway.airport.catalog import Catalog
from skiway.airport.request import Request, enter
from skiway.airport.transactions import Transactional, TransactionManager, TransactionStatus
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import (
    CatalogRequest,
    TransactionInfo,
    TransactionRequest,
    TransactionState,
    decode,
    encode,
)
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported

if TYPE_CHECKING:
    from skiway.airport.service import AirportService


@contextlib.contextmanager
def unit_of_work(request: Request, catalog: Catalog, *, auto_commit: bool, auto_rollback: bool) -> Iterator[None]:
    """Commit the statement's transaction when it succeeds and roll it back when it fails.

    DuckDB sends the id of one transaction with all statements between BEGIN and COMMIT, and nothing at the end. Its
    first write ends the transaction here; those after it stand alone. A client that ends transactions itself says so in
    a header.
    """
    manager = catalog.transactions if isinstance(catalog, Transactional) else None
    if manager is None or not request.transaction_id:
        yield
        return
    by_client = request.header(headers.AUTO_COMMIT) == "0"
    if manager.status(request.transaction_id) is not TransactionStatus.ACTIVE:
        if by_client:
            raise PreconditionFailed("the transaction has ended or expired: begin a new one")
        enter(msgspec.structs.replace(request, transaction_id=""))
        yield
        return
    try:
        yield
    except BaseException:
        if auto_rollback and not by_client:
            manager.rollback(request.transaction_id)
        raise
    if auto_commit and not by_client:
        manager.commit(request.transaction_id)


def create_transaction(airport: AirportService, request: Request, body: bytes) -> bytes:
    """An id for the statements of one transaction; catalogs without transactions have none."""
    asked = _read(body, CatalogRequest, "create_transaction") if body else CatalogRequest()
    _, catalog = airport.open_catalog(request, asked.catalog_name)
    transaction_id = catalog.transactions.begin() if isinstance(catalog, Transactional) else None
    if _is_json(body):
        return _json({"status": "success", "transaction_id": transaction_id})
    return encode(TransactionInfo(transaction_id))


def get_transaction_status(airport: AirportService, request: Request, body: bytes) -> bytes:
    """Where a transaction is: active, committed or aborted."""
    manager, asked = _manager(airport, request, body, "get_transaction_status")
    status = manager.status(asked.transaction_id)
    return _told(body, asked.transaction_id, status)


def commit_transaction(airport: AirportService, request: Request, body: bytes) -> bytes:
    """Make the work of a transaction durable."""
    manager, asked = _manager(airport, request, body, "commit_transaction")
    _known(manager, asked.transaction_id)
    manager.commit(asked.transaction_id)
    return _told(body, asked.transaction_id, manager.status(asked.transaction_id))


def rollback_transaction(airport: AirportService, request: Request, body: bytes) -> bytes:
    """Undo the work of a transaction."""
    manager, asked = _manager(airport, request, body, "rollback_transaction")
    _known(manager, asked.transaction_id)
    manager.rollback(asked.transaction_id)
    return _told(body, asked.transaction_id, manager.status(asked.transaction_id))


def _manager(
    airport: AirportService, request: Request, body: bytes, what: str
) -> tuple[TransactionManager, TransactionRequest]:
    asked = _read(body, TransactionRequest, what)
    request, catalog = airport.open_catalog(request, asked.catalog_name)
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
