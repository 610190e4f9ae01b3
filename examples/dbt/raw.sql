-- What a shop has loaded into its lake: the sources of this project.
CREATE SCHEMA lake.raw;

CREATE TABLE lake.raw.customers AS
SELECT id, name, country, now() AS loaded_at
FROM (VALUES (1, 'Ada', 'GB'), (2, 'Blaise', 'FR'), (3, 'Carl', 'DE')) AS new(id, name, country);

CREATE TABLE lake.raw.orders AS
SELECT id, customer_id, amount::DECIMAL(9, 2) AS amount, status, ordered_at, now() AS loaded_at
FROM (VALUES
  (1, 1, 9.50, 'shipped', TIMESTAMP '2026-01-01 10:00:00'),
  (2, 1, 3.00, 'placed', TIMESTAMP '2026-01-01 11:30:00'),
  (3, 3, 7.25, 'cancelled', TIMESTAMP '2026-01-02 09:15:00')
) AS new(id, customer_id, amount, status, ordered_at);

CREATE TABLE lake.raw.visits AS
SELECT id, customer_id, page, now() AS loaded_at
FROM (VALUES (1, 1, '/'), (2, 1, '/shoes'), (3, 2, '/')) AS new(id, customer_id, page);
