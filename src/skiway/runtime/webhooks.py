"""The delivery of webhooks: threads that send events over HTTP, only to addresses that the operator permits.

Each webhook has a thread of its own while there is something to send, so an endpoint that does not answer delays no other one.
All servers of a store deliver; leases keep them from sending the same event at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Final

from skiway import __version__
from skiway.clock import Clock, utc_now
from skiway.config import Settings
from skiway.errors import SkiwayError, TimedOut, Unavailable
from skiway.metastore import Realm, webhooks
from skiway.metastore.webhooks import Delivery, DeliveryRules, OnAttempt, Send
from skiway.runtime.lifecycle import repeating
from skiway.runtime.telemetry import count_deliveries
from skiway.runtime.workers import realms_of, worker_name
from skiway.security import SecretsStore
from skiway.security.source_access import SourceAccess
from skiway.security.source_access.web_sessions import guard_session
from skiway.storage import Stores
from skiway.telemetry.metrics import Metrics

__all__ = ["Deliveries", "WebSender", "delivering"]

STOP_S: Final = 5.0

log = logging.getLogger("skiway.webhooks")


class WebSender:
    """Sends a body over HTTP. Redirects are not followed, and the whole exchange has a time limit."""

    def __init__(self, access: SourceAccess, *, timeout_s: float) -> None:
        self._access, self._timeout_s = access, timeout_s

    def __call__(self, account_id: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        """Send; raise `SkiwayError` unless the answer has a status from 200 to 299."""
        results: SimpleQueue[Exception | None] = SimpleQueue()

        def run() -> None:
            try:
                self._post(account_id, url, body, headers)
            except Exception as error:  # noqa: BLE001 - raised again below
                results.put(error)
            else:
                results.put(None)

        # An endpoint may send its answer byte by byte, which no timeout of a socket ends.
        threading.Thread(target=run, name="webhook-request", daemon=True).start()
        try:
            error = results.get(timeout=self._timeout_s)
        except Empty:
            raise self._silent() from None
        if isinstance(error, SkiwayError):
            raise error
        if error is not None:
            raise Unavailable(f"the request failed: {type(error).__name__}", key="webhook.failed") from error

    def _post(self, account_id: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        import requests

        with requests.Session() as session:
            guard_session(session, self._access.of_account(account_id))
            named = {**headers, "User-Agent": f"skiway/{__version__}"}
            limit = self._timeout_s
            try:
                response = session.post(
                    url, data=body, headers=named, timeout=(limit, limit), allow_redirects=False, stream=True
                )
            except requests.Timeout:  # on a busy machine, it can be noticed before the limit of the whole exchange
                raise self._silent() from None
            with response:
                if not 200 <= response.status_code < 300:
                    raise Unavailable(f"the answer has the status {response.status_code}", key="webhook.refused")

    def _silent(self) -> TimedOut:
        return TimedOut(f"there was no answer within {self._timeout_s:g} s", key="webhook.silent")


class Deliveries:
    """Looks for webhooks with something to send, and gives each a thread, up to `parallel` at a time."""

    def __init__(
        self,
        stores: Stores,
        realm_of: Callable[[str], Realm],
        *,
        secrets: SecretsStore,
        send: Send,
        rules: DeliveryRules,
        parallel: int = 8,
        clock: Clock = utc_now,
        owner: str = "",
        on_attempt: OnAttempt = lambda _account_id, _result, _seconds: None,
    ) -> None:
        self._stores, self._realm_of, self._secrets, self._send = stores, realm_of, secrets, send
        self._rules, self._parallel, self._owner = rules, parallel, owner or worker_name()
        self._on_attempt, self._clock = on_attempt, clock
        self._seen: Hashable | None = None
        self._next_at: datetime | None = None
        self._busy: dict[tuple[str, str], threading.Thread] = {}
        self._lock = threading.Lock()

    def look(self) -> None:
        """Begin to deliver whatever is due. Returns without waiting for endpoints.

        If the store has not changed since nothing was due, and no pause has ended, nothing is read.
        """
        state = self._stores.pointers.state()
        if state is not None and state == self._seen and (self._next_at is None or self._clock() < self._next_at):
            return
        is_quiet, later = True, list[datetime]()
        for account_id in webhooks.accounts_with_webhooks(self._stores):
            realm = self._realm_of(account_id)
            due = webhooks.due_webhooks(realm)
            later += [due.next_at] if due.next_at is not None else []
            for webhook_id in due.webhook_ids:
                is_quiet = False
                self._begin(realm, webhook_id)
        self._seen, self._next_at = state if is_quiet else None, min(later, default=None)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is being sent."""
        for thread in list(self._busy.values()):
            thread.join(timeout_s)

    def _begin(self, realm: Realm, webhook_id: str) -> None:
        key = realm.account_id, webhook_id
        with self._lock:
            if key in self._busy or len(self._busy) >= self._parallel:
                return
            delivery = Delivery(
                realm, webhook_id, self._secrets, self._send, self._owner, self._rules, self._on_attempt
            )
            thread = threading.Thread(target=self._deliver, args=(key, delivery), name="webhook", daemon=True)
            self._busy[key] = thread
        thread.start()

    def _deliver(self, key: tuple[str, str], delivery: Delivery) -> None:
        try:
            delivery.run()
        except SkiwayError as error:
            log.warning("webhook %s of account %s was not delivered: %s", key[1], key[0], error)
        finally:
            with self._lock:
                del self._busy[key]


@contextmanager
def delivering(
    settings: Settings, stores: Stores, secrets: SecretsStore, access: SourceAccess, metrics: Metrics
) -> Iterator[None]:
    """Deliver webhooks for the duration of the block, unless the settings turn it off."""
    rules = settings.webhooks
    if not rules.enabled:
        yield
        return
    timeout_s = rules.timeout.total_seconds()
    deliveries = Deliveries(
        stores,
        realms_of(settings, stores),
        secrets=secrets,
        send=WebSender(access, timeout_s=timeout_s),
        rules=DeliveryRules(
            max_attempts=rules.max_attempts,
            base_backoff_s=rules.base_backoff.total_seconds(),
            max_backoff_s=rules.max_backoff.total_seconds(),
            lease_s=3 * timeout_s,
            dead_letters_s=rules.keep_dead_letters.total_seconds(),
        ),
        parallel=rules.parallel,
        on_attempt=count_deliveries(metrics),
    )

    def look() -> None:
        try:
            deliveries.look()
        except SkiwayError as error:
            log.warning("the search for events to deliver failed: %s", error)

    try:
        with repeating(look, name="webhooks", every_s=rules.poll_every.total_seconds(), stop_s=STOP_S):
            yield
    finally:
        deliveries.wait(STOP_S)
