"""Sessions of Spark Connect that cannot be had. One that can is in test_spark_docs."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument
from skiway.pipeline.session import session


@pytest.mark.parametrize("address", ["local[2]", "spark://host:7077", "host:15002"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="sc://host:15002"):
        session("app", remote=address)


def test_a_name_that_is_no_setting_of_spark_is_refused_there_too() -> None:
    with pytest.raises(InvalidArgument, match=r"start with 'spark\.'"):
        session("app", remote="sc://127.0.0.1:1", memory="2g")
