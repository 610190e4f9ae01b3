-- Revenue by day. A run computes those days again whose orders have changed.
{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='day') }}

select day, sum(case when status = 'cancelled' then 0 else amount end) as revenue, max(loaded_at) as loaded_at
from {{ ref('orders') }}
{% if is_incremental() %}
where day in (select day from {{ ref('orders') }} where loaded_at > (select max(loaded_at) from {{ this }}))
{% endif %}
group by day
