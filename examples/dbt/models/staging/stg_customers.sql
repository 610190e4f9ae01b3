select id as customer_id, name, country, loaded_at from {{ source('raw', 'customers') }}
