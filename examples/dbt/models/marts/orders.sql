-- The newest state of each order.
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='order_id') }}

select order_id, customer_id, amount, status, day, loaded_at from {{ ref('stg_orders') }}
{% if is_incremental() %}
where loaded_at > (select max(loaded_at) from {{ this }})
{% endif %}
