"""Invalid Spark Connect settings. test_spark_docs covers a working session."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument
from skiway.spark_jobs.session import session


@pytest.mark.parametrize("address", ["local[2]", "spark://host:7077", "host:15002"])
def test_address_with_another_scheme_is_rejected(address: str) -> None:
    with pytest.raises(InvalidArgument, match="sc://host:15002"):
        session("app", remote=address)


def test_name_that_is_not_a_spark_setting_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match=r"start with 'spark\.'"):
        session("app", remote="sc://127.0.0.1:1", memory="2g")
