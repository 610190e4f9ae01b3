select * from (select sum(revenue) as revenue from {{ ref('daily_revenue') }})
cross join (select sum(amount) as amount from {{ ref('orders') }} where status <> 'cancelled')
where revenue is distinct from amount
