select customer_id, name, countries.title as country, count(order_id) as orders, coalesce(sum(amount), 0) as spent
from {{ ref('stg_customers') }} as customers
left join {{ ref('countries') }} as countries on countries.code = customers.country
left join {{ ref('orders') }} as orders using (customer_id)
group by customer_id, name, countries.title
