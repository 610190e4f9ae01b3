"""The Puffin file, read by pyiceberg."""

from __future__ import annotations

import datasketches
import pyarrow as pa
from pyiceberg.table.puffin import PuffinFile

from pipeline.made import schema, theta
from skiway.pipeline.puffin import written


def test_sketches_are_found_again_at_their_places() -> None:
    of = schema(id=pa.int64(), name=pa.string(), price=pa.decimal128(9, 2), share=pa.float32())
    sketches = {1: theta(range(9000)), 2: theta(["a", "b"]), 3: theta(["1.00"]), 4: theta([0.5])}
    puffin = written(sketches, of, snapshot_id=77, sequence_number=5)
    footer = PuffinFile(puffin.data).footer
    assert [blob.fields for blob in footer.blobs] == [[1], [2]]  # Iceberg hashes decimals and floats otherwise
    for blob in footer.blobs:
        assert (blob.type, blob.snapshot_id, blob.sequence_number) == ("apache-datasketches-theta-v1", 77, 5)
        found = puffin.data[blob.offset : blob.offset + blob.length]
        assert found == sketches[blob.fields[0]]
        estimate = datasketches.compact_theta_sketch.deserialize(found).get_estimate()
        assert blob.properties == {"ndv": str(round(estimate))}
    assert puffin.data[-puffin.footer_size :][:4] == b"PFA1"


def test_a_table_without_sketches_has_an_empty_file() -> None:
    assert PuffinFile(written({}, schema(n=pa.int64()), snapshot_id=1, sequence_number=1).data).footer.blobs == []
