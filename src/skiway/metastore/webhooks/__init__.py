"""Webhooks: events of an account that servers send to an address over HTTP.

The calls of `WebhookService` are exported here. `resources` stores webhooks and how far each of them is, and `delivery` sends the next
event.
"""

from skiway.metastore.webhooks.delivery import (
    Delivery,
    DeliveryRules,
    Due,
    OnAttempt,
    Send,
    accounts_with_webhooks,
    due_webhooks,
)
from skiway.metastore.webhooks.resources import calls, list_dead_letters, redeliver
