"""Details of errors: short and on one line, whatever the library that failed has to say."""

from __future__ import annotations

from skiway.formats.files import corrupt, first_lines


def test_detail_has_the_first_three_lines() -> None:
    assert first_lines("one\n\n  two  \nthree\nfour") == "one; two; three"
    assert first_lines(ValueError("one")) == "one"
    assert first_lines("") == ""


def test_long_detail_is_shortened() -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(400))
    assert first_lines(text) == text[:300]
    assert corrupt("s3://b/f", text).detail == text[:300]
    assert str(corrupt("s3://b/f", text)).startswith("file 's3://b/f' is corrupt; restore it")
