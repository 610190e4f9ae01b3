"""Iceberg's Java API, called through the JVM of Spark, for what Spark's SQL cannot do: equality deletes, and Puffin files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Long(int):
    """A number that py4j passes to Java as Long: it compares numbers with the limits of Integer first."""

    def __le__(self, other: object) -> bool:
        return False


class JavaTable:
    """An Iceberg table as Iceberg's own library sees it."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self._jvm: Any = session._jvm
        self._table = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)

    def delete_equal(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        partition: str | None = None,
        spec_id: int | None = None,
        file_format: str = "parquet",
    ) -> None:
        """Delete the rows that have the same values in `columns` as one of `rows`, which are written to a delete file.

        `partition` is a path such as `part=1`; without it, and with an unpartitioned spec, the deletes are global.
        """
        iceberg = self._jvm.org.apache.iceberg
        self._table.refresh()
        schema = self._table.schema()
        keys = schema.select(self._java_list(columns))
        spec = self._table.spec() if spec_id is None else self._table.specs().get(spec_id)
        ids = self._ints([schema.findField(column).fieldId() for column in columns])
        of = getattr(iceberg.FileFormat, file_format.upper())
        factory = (
            iceberg.data.GenericFileWriterFactory.Builder(self._table)
            .deleteFileFormat(of)
            .equalityFieldIds(ids)
            .equalityDeleteRowSchema(keys)
            .build()
        )
        location = f"{self._table.location()}/data/eq-{uuid4()}.{file_format}"
        output = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(self._table.io().newOutputFile(location))
        place = iceberg.DataFiles.data(spec, partition) if partition else None
        writer = factory.newEqualityDeleteWriter(output, spec, place)
        for row in rows:
            record = iceberg.data.GenericRecord.create(keys)
            for name, value in row.items():
                is_long = str(keys.findType(name)) == "long"
                record.setField(name, Long(value) if is_long and value is not None else value)
            writer.write(record)
        writer.close()
        self._table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()

    def distinct_counts(self) -> dict[int, tuple[str, float]]:
        """By field id, the property `ndv` and the estimate of the theta sketch in the table's statistics files.

        Iceberg's reader reads the Puffin files, and Spark's own library the sketches.
        """
        jvm, found = self._jvm, {}
        self._table.refresh()
        for statistics in self._table.statisticsFiles():
            reader = jvm.org.apache.iceberg.puffin.Puffin.read(self._table.io().newInputFile(statistics.path())).build()
            for pair in _items(reader.readAll(reader.fileMetadata().blobs())):
                blob, content = pair.first(), pair.second()
                assert blob.type() == jvm.org.apache.iceberg.puffin.StandardBlobTypes.APACHE_DATASKETCHES_THETA_V1
                data = jvm.org.apache.iceberg.util.ByteBuffers.toByteArray(content)
                memory = jvm.org.apache.datasketches.memory.Memory.wrap(data)
                sketch = jvm.org.apache.datasketches.theta.CompactSketch.heapify(memory)
                [field_id] = blob.inputFields()
                found[int(field_id)] = blob.properties()["ndv"], sketch.getEstimate()
            reader.close()
        return found

    def _java_list(self, values: Sequence[str]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for value in values:
            made.add(value)
        return made

    def _ints(self, values: Sequence[int]) -> Any:
        array = self._jvm.java.lang.reflect.Array.newInstance(self._jvm.java.lang.Integer.TYPE, len(values))
        for place, value in enumerate(values):
            self._jvm.java.lang.reflect.Array.setInt(array, place, value)
        return array


def _items(iterable: Any) -> Iterator[Any]:
    """The items of a Java iterable, which need not be a collection."""
    rest = iterable.iterator()
    while rest.hasNext():
        yield rest.next()
