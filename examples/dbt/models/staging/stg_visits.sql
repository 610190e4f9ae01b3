select id as visit_id, customer_id, page, loaded_at from {{ source('raw', 'visits') }}
