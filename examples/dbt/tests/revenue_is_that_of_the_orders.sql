select revenue, amount from (select sum(revenue) as revenue from {{ ref('daily_revenue') }})
cross join (select sum(amount) as amount from {{ ref('orders') }} where status <> 'cancelled')
where revenue <> amount
