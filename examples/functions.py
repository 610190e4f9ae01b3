"""All kinds of functions: scalar functions, table functions, and table functions over rows.

Start it with `python examples/functions.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'tools' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT tools.demo.twice(21), tools.demo.twice('ha');
    SELECT tools.demo.type_of(DATE '2025-01-31'), tools.demo.type_of([1, 2]);
    SELECT tools.demo.motto(), tools.demo.dice() FROM range(3);
    SELECT * FROM tools.demo.series(5, step => 10) WHERE n > 20;
    SELECT * FROM tools.demo.grid(3);
    SELECT * FROM tools.demo.running_total('fare', (SELECT fare FROM tools.demo.rides));

Press Ctrl-C to stop the server.
"""

import random
import sys

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import (
    Catalog,
    CatalogBuilder,
    InOutCall,
    Parameter,
    ScalarFunction,
    TableInOutFunction,
    Volatility,
    filters,
    serve,
)
from skiway.errors import InvalidArgument

RIDES = pa.table({"city": ["Oslo", "Lima", "Rome"], "fare": [12.5, 7.0, None]})


class Dice(ScalarFunction):
    """A scalar function as a class. Unlike a decorated function, it knows the number of rows and rolls once per row."""

    name = "dice"
    returns = pa.int64()
    volatility = Volatility.VOLATILE  # otherwise DuckDB would call it once per query

    def execute(self, arguments):
        return pa.array(random.choices(range(1, 7), k=arguments.num_rows))


class RunningTotal(TableInOutFunction):
    """Appends the running total of a column to each row, and a last row with the total of all rows."""

    name = "running_total"
    parameters = (Parameter("column", pa.string()),)

    def schema_for(self, arguments, rows):
        name = arguments["column"].as_py()
        if name not in rows.names:
            raise InvalidArgument(f"running_total({name!r}, …): the rows have columns {', '.join(rows.names)}")
        return rows.append(pa.field("total", pa.float64()))

    def open(self, arguments, rows):
        return RunningTotalCall(self.schema_for(arguments, rows), arguments["column"].as_py())


class RunningTotalCall(InOutCall):
    """A call of `running_total`. It holds the state of the call."""

    def __init__(self, schema, column):
        self._schema, self._column, self._total = schema, column, 0.0

    def process(self, rows):
        values = pc.fill_null(rows[self._column].cast(pa.float64()), 0.0)
        totals = pc.cumulative_sum(values, start=self._total)
        self._total += pc.sum(values, min_count=0).as_py()
        yield rows.append_column("total", totals)

    def finish(self):
        nulls = [pa.nulls(1, field.type) for field in self._schema][:-1]
        yield pa.record_batch([*nulls, pa.array([self._total])], schema=self._schema)


def catalog() -> Catalog:
    """A catalog with functions of all kinds."""
    tools = CatalogBuilder("tools")
    demo = tools.schema("demo")
    demo.scalar_function(Dice())
    demo.table_function(RunningTotal())

    @demo.table(schema=RIDES.schema)
    def rides(_scan):
        return RIDES

    @demo.scalar_function(name="twice")
    def twice_a_number(number: pa.Int64Array) -> pa.Int64Array:
        return pc.multiply(number, 2)

    @demo.scalar_function(name="twice")  # the same name with other types is an overload
    def twice_a_string(text: pa.StringArray) -> pa.StringArray:
        return pc.binary_repeat(text, 2)

    @demo.scalar_function
    def type_of(value: pa.Array) -> pa.StringArray:  # pa.Array accepts any type
        return pa.repeat(str(value.type), len(value))

    @demo.scalar_function
    def motto() -> pa.StringArray:  # a single value is repeated for all rows
        return "land on ice"

    @demo.table_function(schema=pa.schema({"n": pa.int64()}))
    def series(count: int, scan, *, step: int = 1):  # keyword-only: step => …; `scan` has the filter
        numbers = pa.table({"n": pa.array(range(0, count * step, step), pa.int64())})
        wanted = filters.to_arrow(scan.filter, numbers.schema)
        return numbers if wanted is None else numbers.filter(wanted)

    def squares(size: int) -> pa.Schema:
        return pa.schema({f"x{x}": pa.int64() for x in range(size)})

    @demo.table_function(schema=squares)  # the columns depend on the parameters
    def grid(size: int):
        return pa.table({f"x{x}": [x * y for y in range(size)] for x in range(size)}, squares(size))

    return tools.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
