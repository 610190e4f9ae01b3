-- What each customer has bought.
select customer_id, name, countries.title as country, count(order_id) as orders, coalesce(sum(amount), 0) as spent
from {{ ref('stg_customers') }}
left join {{ ref('countries') }} as countries on countries.code = country
left join {{ ref('orders') }} using (customer_id)
group by all
