"""Which objects match the words of a text, and in which order."""

from __future__ import annotations

import json

from skiway.metastore.search.index import MAX_WORDS, PART, Document, IndexedDocument, column_comments, match, words_of
from skiway.model import v1

ORDERS = Document.at(v1.RK_TABLE, ("lake", "Sales", "orders"), ("Amount", "iban"), "in EUR")
TAGS = (("iban", "pii"),)


def where(text: str, document: Document = ORDERS) -> str | None:
    found = match(document, words_of(text), TAGS)
    return None if found is None else found[1]


def test_words_are_found_in_names_columns_comments_and_tags() -> None:
    assert where("orders") == where("SALES") == where("lake.sales.ord") == "name"
    assert where("amount") == "column Amount"
    assert where("eur") == "comment"
    assert where("pii") == where("pii sales") == "tag pii of column iban"
    assert where("sales iban") == "column iban"


def test_each_word_must_occur() -> None:
    assert where("orders nowhere") is None
    assert match(ORDERS, words_of("pii")) is None, "without its tags"


def test_names_come_before_tags_before_columns_before_comments() -> None:
    named = [
        (Document.at(v1.RK_TABLE, ("lake", "s", "a"), comment="about pii"), ()),
        (Document.at(v1.RK_TABLE, ("lake", "s", "b"), ("pii",)), ()),
        (Document.at(v1.RK_TABLE, ("lake", "s", "c")), (("email", "pii"),)),
        (Document.at(v1.RK_TABLE, ("lake", "s", "pii")), ()),
    ]
    scores = [found[0] for document, tags in named if (found := match(document, ["pii"], tags))]
    assert scores == sorted(scores)
    assert len(set(scores)) == 4


def test_exact_names_come_before_beginnings_before_parts_of_names() -> None:
    scores = [
        found[0]
        for name in ("orders", "orders_old", "old_orders", "other")
        if (found := match(Document.at(v1.RK_TABLE, ("orders", name)), ["orders"]))
    ]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


def test_text_of_the_index_contains_the_whole_document_in_lower_case() -> None:
    text = ORDERS.text()
    assert text == text.lower()
    again = IndexedDocument(v1.RK_TABLE, "Orders", text)
    for searched in ("orders", "sales amount", "eur", "lake.sales.orders"):
        assert match(again, words_of(searched)) is not None
        assert match(again, words_of(searched))[0] == match(ORDERS, words_of(searched))[0]  # type: ignore[index]
    odd = Document.at(v1.RK_TABLE, (f"a{PART}b",), ("x\x1fy",), f"c{PART}d")
    found = IndexedDocument(v1.RK_TABLE, "a b", odd.text())
    assert (found.path, found.columns, found.comment) == ("a b", ["x y"], "c d")
    assert IndexedDocument(v1.RK_VIEW, "v", Document.at(v1.RK_VIEW, ("lake", "v")).text()).columns == ()


def test_words_are_limited() -> None:
    assert words_of(" A  b a ") == ["a", "b"]
    assert len(words_of(" ".join(map(str, range(1000))))) == MAX_WORDS


def test_columns_of_a_schema_that_is_none_are_not_searched() -> None:
    schema = {"fields": [{"name": "a", "doc": "first"}, {"name": "b"}, {"name": "c", "doc": 7}]}
    assert column_comments(json.dumps(schema)) == {"a": "first", "b": "", "c": ""}
    for text in ("", "{}", "[]", "not JSON", '{"fields": 3}'):
        assert column_comments(text) == {}
