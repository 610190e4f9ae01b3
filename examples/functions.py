"""Functions in all their forms: of values, of parameters, and of rows.

Start it with `python examples/functions.py [location]`, then type into DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'tools' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT tools.demo.twice(21), tools.demo.twice('ha');
    SELECT tools.demo.type_of(DATE '2025-01-31'), tools.demo.type_of([1, 2]);
    SELECT tools.demo.motto(), tools.demo.dice() FROM range(3);
    SELECT * FROM tools.demo.series(5, step => 10) WHERE n > 20;
    SELECT * FROM tools.demo.grid(3);
    SELECT * FROM tools.demo.running_total('fare', (SELECT fare FROM tools.demo.rides));

Ctrl-C ends the server.
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
    """What the decorators make, written out: here the number of rows matters, for each gets a throw of its own."""

    name = "dice"
    returns = pa.int64()
    volatility = Volatility.VOLATILE  # else DuckDB would throw once per query

    def execute(self, arguments):
        return pa.array(random.choices(range(1, 7), k=arguments.num_rows))


class RunningTotal(TableInOutFunction):
    """Each row with the total so far of one of its columns, and at the end one row with the total of all."""

    name = "running_total"
    parameters = (Parameter("column", pa.string()),)

    def schema_for(self, arguments, rows):
        name = arguments["column"].as_py()
        if name not in rows.names:
            raise InvalidArgument(f"running_total({name!r}, …): the rows have columns {', '.join(rows.names)}")
        return rows.append(pa.field("total", pa.float64()))

    def open(self, arguments, rows):
        return Adding(self.schema_for(arguments, rows), arguments["column"].as_py())


class Adding(InOutCall):
    """One call: what it has to remember lives as long as the call."""

    def __init__(self, schema, column):
        self._schema, self._column, self._total = schema, column, 0.0

    def process(self, rows):
        values = pc.fill_null(rows[self._column].cast(pa.float64()), 0.0)
        totals = pc.cumulative_sum(values, start=self._total)
        self._total += pc.sum(values, min_count=0).as_py()
        yield rows.append_column("total", totals)

    def finish(self):
        unknown = [pa.nulls(1, field.type) for field in self._schema][:-1]
        yield pa.record_batch([*unknown, pa.array([self._total])], schema=self._schema)


def catalog() -> Catalog:
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

    @demo.scalar_function(name="twice")  # the same name with another type is an overload
    def twice_a_text(text: pa.StringArray) -> pa.StringArray:
        return pc.binary_repeat(text, 2)

    @demo.scalar_function
    def type_of(value: pa.Array) -> pa.StringArray:  # an array of no type in particular is ANY
        return pa.repeat(str(value.type), len(value))

    @demo.scalar_function
    def motto() -> pa.StringArray:  # without arguments, one value serves for all rows
        return "land on ice"

    @demo.table_function(schema=pa.schema({"n": pa.int64()}))
    def series(count: int, scan, *, step: int = 1):  # keyword-only is named in SQL; `scan` has the query's hints
        numbers = pa.table({"n": pa.array(range(0, count * step, step), pa.int64())})
        wanted = filters.to_arrow(scan.filter, numbers.schema)
        return numbers if wanted is None else numbers.filter(wanted)

    def squares(size: int) -> pa.Schema:
        return pa.schema({f"x{x}": pa.int64() for x in range(size)})

    @demo.table_function(schema=squares)  # columns that depend on the parameters
    def grid(size: int):
        return pa.table({f"x{x}": [x * y for y in range(size)] for x in range(size)}, squares(size))

    return tools.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
