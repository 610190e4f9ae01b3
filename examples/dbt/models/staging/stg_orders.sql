select id as order_id, customer_id, amount, status, cast(ordered_at as date) as day, loaded_at
from {{ source('raw', 'orders') }}
