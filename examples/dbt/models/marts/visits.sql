-- All visits; none of them changes later.
{{ config(materialized='incremental', incremental_strategy='append') }}

select visit_id, customer_id, page, loaded_at from {{ ref('stg_visits') }}
{% if is_incremental() %}
where loaded_at > (select max(loaded_at) from {{ this }})
{% endif %}
