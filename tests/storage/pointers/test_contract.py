"""The contract of every pointer store."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timedelta, timezone

import pytest

from skiway.errors import AlreadyExists, Conflict, InvalidArgument, LimitExceeded, PreconditionFailed, Unsupported
from skiway.storage import ABSENT, CallCounter, Check, Delete, Pointer, Put
from storage.homes import CONTRACT_KINDS, POINTER_KINDS, Home, pointer_home

UNUSUAL_KEYS = (
    "/",
    "/a",
    "/a\x00b",
    "/a b",
    "/a%",
    "/a%25/b",
    "/a_b",
    "/aXb",
    "/a\\",
    "/a\\%",
    "/a'b",
    '/a"b',
    "/a*?[x]",
    "/A",
    "/é",
    "/e\u0301",
    "/ß",
    "/日本",
    "/\uffff",
    "/\U0001f600",
    "/\U0010ffff",
    "/a/b",
    "/a-b",
    "/~",
    " ",
)


@pytest.fixture(params=CONTRACT_KINDS)
def home(request, tmp_path, server) -> Home:
    """A home for pointers, in every backend and also in an emulation of DynamoDB."""
    return pointer_home(request.param, tmp_path, server)


def keys_of(items):
    return [pointer.key for pointer in items]


def create(pointers, *keys, expires_at=None):
    for start in range(0, len(keys), 50):
        batch = keys[start : start + 50]
        pointers.apply([Put(key, f"blob of {key[:20]!r}", expect=ABSENT, expires_at=expires_at) for key in batch])


# --- one pointer ------------------------------------------------------------------------------------------------------


def test_missing_pointer_is_none(pointers):
    assert pointers.get("/a") is None


def test_created_pointer_has_version_one(pointers):
    created = pointers.compare_and_set("/a", "blob", expect=ABSENT)
    assert created == Pointer("/a", "blob", 1, None)
    assert pointers.get("/a") == created


@pytest.mark.behavior(1)
def test_second_creation_fails_and_keeps_the_first(pointers):
    first = pointers.compare_and_set("/a", "one", expect=ABSENT)
    with pytest.raises(AlreadyExists, match="already exists at version 1") as caught:
        pointers.compare_and_set("/a", "two", expect=ABSENT)
    assert caught.value.params == {"pointer": "'/a'", "expected": "0", "found": "1"}
    assert pointers.get("/a") == first


@pytest.mark.behavior(2)
def test_setting_stores_the_expected_version_plus_one(pointers):
    pointers.compare_and_set("/a", "one", expect=ABSENT)
    pointers.compare_and_set("/a", "two", expect=1)
    assert pointers.compare_and_set("/a", "three", expect=2) == pointers.get("/a") == Pointer("/a", "three", 3)


@pytest.mark.behavior(3)
@pytest.mark.parametrize("expect", [1, 3, 2**62])
def test_setting_with_the_wrong_version_changes_nothing(pointers, expect):
    pointers.compare_and_set("/a", "one", expect=ABSENT)
    current = pointers.compare_and_set("/a", "two", expect=1)
    with pytest.raises(Conflict, match=f"expected at version {expect}, but is at version 2") as caught:
        pointers.compare_and_set("/a", "three", expect=expect)
    assert not isinstance(caught.value, AlreadyExists)
    assert pointers.get("/a") == current


def test_setting_an_absent_pointer_conflicts(pointers):
    with pytest.raises(Conflict, match="expected at version 1, but is absent"):
        pointers.compare_and_set("/a", "one", expect=1)
    assert pointers.get("/a") is None


@pytest.mark.behavior(3)
def test_deletion_requires_the_right_version(pointers):
    current = pointers.compare_and_set("/a", "one", expect=ABSENT)
    with pytest.raises(Conflict):
        pointers.compare_and_delete("/a", expect=2)
    assert pointers.get("/a") == current
    pointers.compare_and_delete("/a", expect=1)
    assert pointers.get("/a") is None
    with pytest.raises(Conflict):
        pointers.compare_and_delete("/a", expect=1)


def test_deleted_pointer_can_be_created_again(pointers):
    pointers.compare_and_set("/a", "one", expect=ABSENT)
    pointers.compare_and_set("/a", "two", expect=1)
    pointers.compare_and_delete("/a", expect=2)
    assert pointers.compare_and_set("/a", "three", expect=ABSENT).version == 1


@pytest.mark.parametrize("blob_uri", ["", "x" * 65_536, "日本\U0001f600", "a\nb'\"\\%"])
def test_any_short_text_can_be_a_blob_uri(pointers, blob_uri):
    pointers.compare_and_set("/a", blob_uri, expect=ABSENT)
    assert pointers.get("/a").blob_uri == blob_uri


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batch_applies_all_operations(pointers):
    create(pointers, "/set", "/gone", "/same")
    done = pointers.apply(
        [
            Put("/new", "n", expect=ABSENT),
            Delete("/gone", expect=1),
            Put("/set", "s", expect=1),
            Check("/same", expect=1),
            Check("/absent", expect=ABSENT),
        ]
    )
    assert done == (Pointer("/new", "n", 1), Pointer("/set", "s", 2))
    assert keys_of(pointers.scan()) == ["/new", "/same", "/set"]
    assert pointers.get("/same").version == 1


FAILING = (
    Put("/b", "changed", expect=ABSENT),
    Put("/b", "changed", expect=2),
    Put("/absent", "changed", expect=1),
    Delete("/b", expect=2),
    Delete("/absent", expect=1),
    Check("/b", expect=ABSENT),
    Check("/b", expect=2),
    Check("/absent", expect=1),
)


@pytest.mark.behavior(4)
@pytest.mark.parametrize("failing", FAILING, ids=repr)
@pytest.mark.parametrize("position", [0, 1, 3])
def test_failing_operation_undoes_the_whole_batch(pointers, failing, position):
    create(pointers, "/a", "/b", "/c")
    before = list(pointers.scan())
    batch = [Put("/a", "changed", expect=1), Delete("/c", expect=1), Put("/new", "changed", expect=ABSENT)]
    batch.insert(position, failing)
    with pytest.raises(Conflict, match=repr(failing.key)):
        pointers.apply(batch)
    assert list(pointers.scan()) == before


def test_empty_batch_does_nothing(pointers):
    assert pointers.apply([]) == ()


def test_batch_of_checks_fails_if_one_does_not_hold(pointers):
    create(pointers, "/a")
    pointers.apply([Check("/a", expect=1), Check("/b", expect=ABSENT)])
    with pytest.raises(AlreadyExists):
        pointers.apply([Check("/a", expect=ABSENT)])


@pytest.mark.behavior(4)
def test_key_must_not_occur_twice_in_a_batch(pointers):
    with pytest.raises(InvalidArgument, match="'/a' occurs twice"):
        pointers.apply([Put("/a", "one", expect=ABSENT), Check("/a", expect=ABSENT)])


def test_batch_at_the_limit_succeeds_and_a_larger_one_is_rejected(pointers):
    batch = [Put(f"/{number:05d}", "blob", expect=ABSENT) for number in range(pointers.max_batch)]
    with pytest.raises(
        LimitExceeded, match=f"{pointers.max_batch + 1} operations exceeds the limit of {pointers.max_batch}"
    ):
        pointers.apply([*batch, Put("/more", "blob", expect=ABSENT)])
    assert pointers.count() == 0
    assert len(pointers.apply(batch)) == pointers.count() == pointers.max_batch


# --- listing ----------------------------------------------------------------------------------------------------------


def test_keys_are_listed_in_utf8_byte_order(pointers):
    create(pointers, *random.Random(1).sample(UNUSUAL_KEYS, len(UNUSUAL_KEYS)))
    assert keys_of(pointers.scan()) == sorted(UNUSUAL_KEYS, key=str.encode)


@pytest.mark.parametrize(
    "prefix", ["/a", "/a%", "/a_", "/a\\", "/é", "/\U0001f600", "/\U0010ffff", "", "zzz", "/a\x00"]
)
def test_prefix_is_matched_literally(pointers, prefix):
    create(pointers, *UNUSUAL_KEYS)
    expected = sorted((key for key in UNUSUAL_KEYS if key.startswith(prefix)), key=str.encode)
    assert keys_of(pointers.scan(prefix, page_size=2)) == expected
    assert pointers.count(prefix) == len(expected)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 100])
def test_pages_show_each_pointer_once_and_end_without_a_token(pointers, size):
    keys = [f"/p/{number}" for number in range(6)]
    create(pointers, *keys, "/o", "/q")
    seen, token, pages = [], None, 0
    while pages == 0 or token is not None:
        page = pointers.page("/p/", size=size, token=token)
        assert 1 <= len(page.items) <= size
        seen += keys_of(page.items)
        token, pages = page.next_token, pages + 1
    assert seen == keys
    assert pages == -(-6 // size)


def test_empty_listing_is_one_empty_page(pointers):
    page = pointers.page("/none")
    assert page.items == ()
    assert page.next_token is None


def test_page_token_stays_valid_when_its_pointer_is_deleted(pointers):
    create(pointers, "/1", "/2", "/3", "/4")
    token = pointers.page(size=2).next_token
    pointers.compare_and_delete("/2", expect=1)
    assert keys_of(pointers.page(token=token).items) == ["/3", "/4"]


def test_page_token_skips_keys_added_before_it_and_includes_those_after(pointers):
    create(pointers, "/1", "/3", "/5")
    token = pointers.page(size=2).next_token
    create(pointers, "/2", "/4", "/6")
    assert keys_of(pointers.page(token=token).items) == ["/4", "/5", "/6"]


def test_page_token_can_be_created_for_any_key(pointers):
    create(pointers, "/1", "/2", "/3")
    assert keys_of(pointers.page("/", token=pointers.token_after("/", "/1x")).items) == ["/2", "/3"]


@pytest.mark.parametrize("home", POINTER_KINDS, indirect=True)
def test_pages_miss_no_permanent_pointer_during_concurrent_changes(pointers):
    permanent = [f"/k/{number:03d}" for number in range(0, 60, 2)]
    temporary = [f"/k/{number:03d}" for number in range(1, 60, 2)]
    create(pointers, *permanent)
    done = threading.Event()

    def disturb():
        while not done.is_set():
            create(pointers, *temporary)
            pointers.apply([Delete(key, expect=1) for key in temporary])

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for _ in range(5):
            seen = keys_of(pointers.scan("/k/", page_size=3))
            assert seen == sorted(set(seen))
            assert set(seen) >= set(permanent)
    finally:
        done.set()
        disturber.join()


def test_modified_page_token_is_rejected(pointers):
    create(pointers, "/a/1", "/a/2")
    token = pointers.page("/a/", size=1).next_token
    for position, letter in enumerate(token):
        modified = token[:position] + ("A" if letter != "A" else "B") + token[position + 1 :]
        with pytest.raises(InvalidArgument, match="page token"):
            pointers.page("/a/", token=modified)
    for modified in (token[:-1], token + "A", token + "=", token + "\n", "!" + token, "é", "x", " "):
        with pytest.raises(InvalidArgument) as caught:
            pointers.page("/a/", token=modified)
        assert caught.value.key == "page.token.invalid"


def test_page_token_of_another_listing_is_rejected(pointers):
    create(pointers, "/a/1", "/a/2")
    token = pointers.page("/a/", size=1).next_token
    for prefix in ("/a", "/a/1", "", "/b/"):
        with pytest.raises(InvalidArgument, match="page token"):
            pointers.page(prefix, token=token)


def test_forged_page_token_does_not_leave_its_prefix(pointers):
    create(pointers, "/a/1", "/b/1", "/c/1")
    assert keys_of(pointers.page("/b/", token=pointers.token_after("/b/", "/a/0")).items) == ["/b/1"]
    assert pointers.page("/b/", token=pointers.token_after("/b/", "/c/0")).items == ()


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_invalid_page_size_is_rejected(pointers, size):
    with pytest.raises(InvalidArgument, match=f"invalid page size {size}"):
        pointers.page(size=size)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_long_keys_are_distinct_ordered_and_found_by_prefix(pointers):
    start = "/" + "日" * 1000
    keys = ["/", "/" + "日" * 319, "/" + "日" * 319 + "本", start, *(start + "x" * 8000 + end for end in "azbycx")]
    keys += ["/" + "\U0010ffff" * 9_999, "/" + "é" * 9_999, "z" * 960, "z" * 961, "z" * 992, "z" * 1024]
    create(pointers, *keys)
    assert keys_of(pointers.scan(page_size=1)) == sorted(keys, key=str.encode)
    assert keys_of(pointers.scan(start + "x", page_size=2)) == sorted(start + "x" * 8000 + end for end in "azbycx")
    assert pointers.count(start) == 7
    assert pointers.count("z" * 960) == 4
    assert pointers.count("z" * 961) == 3
    pointers.compare_and_delete(keys[5], expect=1)
    assert pointers.get(keys[5]) is None
    assert pointers.get(keys[6]) == Pointer(keys[6], f"blob of {keys[6][:20]!r}", 1)


def test_long_keys_are_compared_in_batches(pointers):
    start = "/" + "é" * 2000
    create(pointers, start, start + "a", start + "b", start + "c")
    with pytest.raises(Conflict):
        pointers.apply([Put(start + "a", "two", expect=1), Check(start + "b", expect=2)])
    pointers.apply([Put(start + "a", "two", expect=1), Delete(start + "b", expect=1), Check(start + "c", expect=1)])
    assert [(pointer.key, pointer.version) for pointer in pointers.scan()] == [
        (start, 1),
        (start + "a", 2),
        (start + "c", 1),
    ]


@pytest.mark.parametrize("key", ["", "/half \ud800", "\udfff"])
def test_invalid_key_is_rejected(pointers, key):
    for call in (
        lambda: pointers.get(key),
        lambda: pointers.compare_and_set(key, "blob", expect=ABSENT),
        lambda: pointers.compare_and_delete(key, expect=1),
        lambda: pointers.apply([Check(key, expect=1)]),
    ):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.key == "pointer.key.invalid"


def test_key_can_have_ten_thousand_characters_but_not_more(pointers):
    pointers.compare_and_set("\U0001f600" * 10_000, "blob", expect=ABSENT)
    with pytest.raises(LimitExceeded, match="40001 bytes in UTF-8, but at most 40000"):
        pointers.get("\U0001f600" * 10_000 + "x")


@pytest.mark.parametrize(
    ("blob_uri", "error"), [("a\0b", InvalidArgument), ("\ud800", InvalidArgument), ("x" * 65_537, LimitExceeded)]
)
def test_invalid_blob_uri_is_rejected(pointers, blob_uri, error):
    with pytest.raises(error, match="blob address for pointer '/a'"):
        pointers.compare_and_set("/a", blob_uri, expect=ABSENT)


@pytest.mark.parametrize(
    "operation",
    [Put("/a", "b", expect=-1), Delete("/a", expect=0), Check("/a", expect=-1), Put("/a", "b", expect=2**63)],
)
def test_invalid_version_is_rejected(pointers, operation):
    with pytest.raises(InvalidArgument, match="use the version that was read"):
        pointers.apply([operation])


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_expired_pointer_is_not_returned_listed_or_counted(pointers, clock):
    create(pointers, "/lasting")
    create(pointers, "/passing", expires_at=clock.later(10))
    clock.advance(9.999999)
    assert pointers.get("/passing").expires_at == clock.later(0.000001)
    assert pointers.count() == 2
    clock.advance(0.000001)
    assert pointers.get("/passing") is None
    assert keys_of(pointers.scan()) == ["/lasting"]
    assert pointers.count("/") == 1


def test_expired_pointer_is_absent_for_writers(pointers, clock):
    create(pointers, "/a", expires_at=clock.later(1))
    pointers.compare_and_set("/a", "two", expect=1, expires_at=clock.later(1))
    clock.advance(1)
    for operation in (Put("/a", "three", expect=2), Delete("/a", expect=2), Check("/a", expect=2)):
        with pytest.raises(Conflict, match="but is absent"):
            pointers.apply([operation])
    pointers.apply([Check("/a", expect=ABSENT)])
    assert pointers.compare_and_set("/a", "anew", expect=ABSENT) == Pointer("/a", "anew", 1)
    assert pointers.get("/a") == Pointer("/a", "anew", 1)


def test_setting_renews_or_removes_the_expiry(pointers, clock):
    create(pointers, "/a", "/b", expires_at=clock.later(1))
    pointers.compare_and_set("/a", "x", expect=1, expires_at=clock.later(5))
    pointers.compare_and_set("/b", "x", expect=1)
    clock.advance(3)
    assert keys_of(pointers.scan()) == ["/a", "/b"]
    clock.advance(3)
    assert keys_of(pointers.scan()) == ["/b"]


def test_purging_removes_expired_pointers_within_its_limit(pointers, clock):
    create(pointers, *(f"/old/{number}" for number in range(5)), expires_at=clock.later(1))
    create(pointers, "/young", expires_at=clock.later(100))
    create(pointers, "/lasting", "/long/" + "x" * 5000, expires_at=None)
    create(pointers, "/long/" + "y" * 5000, expires_at=clock.later(1))
    assert pointers.purge_expired() == 0
    clock.advance(1)
    assert [pointers.purge_expired(limit=4) for _ in range(3)] == [4, 2, 0]
    assert keys_of(pointers.scan()) == ["/lasting", "/long/" + "x" * 5000, "/young"]


def test_purging_keeps_recreated_pointers(pointers, clock):
    create(pointers, "/a", "/b", expires_at=clock.later(1))
    clock.advance(1)
    create(pointers, "/a")
    pointers.compare_and_set("/b", "anew", expect=ABSENT, expires_at=clock.later(10))
    assert pointers.purge_expired() == 0
    assert keys_of(pointers.scan()) == ["/a", "/b"]
    clock.advance(10)
    assert pointers.purge_expired() == 1


def test_pages_are_full_even_if_many_pointers_expired(pointers, clock):
    create(pointers, *(f"/{number:02d}" for number in range(0, 20, 2)))
    create(pointers, *(f"/{number:02d}" for number in range(1, 20, 2)), expires_at=clock.later(1))
    clock.advance(1)
    page = pointers.page(size=9)
    assert len(page.items) == 9
    assert keys_of(pointers.page(token=page.next_token).items) == ["/18"]


def test_expiry_is_exact_and_converted_to_utc(pointers):
    moment = datetime(2131, 7, 8, 9, 10, 11, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    set_pointer = pointers.compare_and_set("/a", "blob", expect=ABSENT, expires_at=moment)
    found = pointers.get("/a")
    assert found == set_pointer
    assert found.expires_at == moment
    assert found.expires_at.utcoffset() == timedelta(0)


def test_expiry_without_a_time_zone_is_rejected(pointers):
    with pytest.raises(InvalidArgument, match="2031-01-01T00:00:00 has no time zone"):
        pointers.compare_and_set("/a", "blob", expect=ABSENT, expires_at=datetime(2031, 1, 1))


def test_purge_limit_must_be_positive(pointers):
    with pytest.raises(InvalidArgument, match="invalid limit 0"):
        pointers.purge_expired(limit=0)


# --- visibility and reporting -----------------------------------------------------------------------------------------


def test_every_call_is_reported_once(home):
    calls = []
    with home.pointers(on_call=calls.append) as pointers:
        pointers.compare_and_set("/a", "blob", expect=ABSENT)
        pointers.get("/a")
        pointers.get("/a")
        with pytest.raises(Conflict):
            pointers.compare_and_set("/a", "blob", expect=ABSENT)
        pointers.apply([Check("/a", expect=1), Put("/b", "blob", expect=ABSENT)])
        list(pointers.scan(page_size=1))
        pointers.count()
        pointers.purge_expired(limit=7)
        pointers.compare_and_delete("/a", expect=1)
    assert [(call.operation, call.items, call.error) for call in calls] == [
        ("compare_and_set", 1, None),
        ("get", 1, None),
        ("get", 1, None),
        ("compare_and_set", 1, "AlreadyExists"),
        ("apply", 2, None),
        ("page", 1, None),
        ("page", 1, None),
        ("count", 1, None),
        ("purge_expired", 7, None),
        ("compare_and_delete", 1, None),
    ]
    assert {call.store for call in calls} == {"pointers"}
    assert all(call.seconds > 0 for call in calls)


def test_retired_store_fails_also_for_what_was_read_before(pointers):
    create(pointers, "/a")
    assert pointers.get("/a") == pointers.get("/a") != pointers.get("/b")
    pointers.retire("use a newer version")
    for key in ("/a", "/b"):
        with pytest.raises(PreconditionFailed, match="use a newer version"):
            pointers.get(key)


def test_call_counter_counts_calls(home):
    counter = CallCounter()
    with home.pointers(on_call=counter) as pointers:
        create(pointers, "/a")
        counter.reset()
        pointers.get("/a")
        pointers.get("/b")
        pointers.count()
    assert counter.counts == {"pointers.get": 2, "pointers.count": 1}
    assert counter.total == 3


def test_write_of_one_store_object_is_visible_to_another_immediately(shared_home):
    with shared_home.pointers() as one, shared_home.pointers() as two:
        for version in range(5):
            one.compare_and_set("/a", f"{version}", expect=version)
            assert two.get("/a").blob_uri == f"{version}"
            assert keys_of(two.page().items) == ["/a"]


def test_pointers_persist_when_a_store_is_closed(shared_home):
    with shared_home.pointers() as store:
        create(store, *UNUSUAL_KEYS)
        before = list(store.scan())
    with shared_home.pointers() as store:
        assert list(store.scan()) == before


# --- backups ----------------------------------------------------------------------------------------------------------


def test_loaded_pointers_keep_their_versions_and_expiry(pointers, clock):
    far = clock() + timedelta(days=1)
    given = [Pointer(key, f"blob {number}", number + 1) for number, key in enumerate(sorted(UNUSUAL_KEYS))]
    given += [Pointer("/x" * 2000, "long", 7), Pointer("/expiring", "soon", 3, far)]
    pointers.load(iter(given))
    assert sorted(pointers.scan(), key=lambda each: each.key) == sorted(given, key=lambda each: each.key)
    assert pointers.compare_and_set("/expiring", "later", expect=3).version == 4


@pytest.mark.parametrize("home", POINTER_KINDS, indirect=True)  # moto takes a minute
def test_snapshot_has_all_pointers_of_one_moment(pointers, clock):
    create(pointers, *(f"/{number:04}" for number in range(1500)))
    create(pointers, "/expired", expires_at=clock() + timedelta(seconds=1))
    clock.advance(2)
    expected = list(pointers.scan())
    reading = pointers.snapshot()
    if type(pointers).__name__ == "DynamoPointerStore":
        with pytest.raises(Unsupported, match="use the backups of the database itself"):
            next(reading)
        return
    found = [next(reading)]
    pointers.apply(
        [Put("/0000", "changed", expect=1), Put("/1499", "changed", expect=1), Put("/zz", "new", expect=ABSENT)]
    )
    found += reading
    assert sorted(found, key=lambda each: each.key) == expected


# --- state ------------------------------------------------------------------------------------------------------------


def test_every_change_changes_the_state_of_stores_that_know_it(home):
    with home.pointers() as pointers, home.pointers() as second:
        other = pointers if home.kind == "memory" else second
        states = [pointers.state()]
        if home.kind.startswith("dynamodb"):
            assert states == [None]
            return
        # PostgreSQL analyzes tables in the background, which changes the state as well, but not each time.
        assert any(
            (pointers.state(), pointers.get("/a"), pointers.state())[::2] == 2 * (pointers.state(),) for _ in range(5)
        )
        other.compare_and_set("/a", "one", expect=ABSENT)
        states.append(pointers.state())
        pointers.compare_and_set("/a", "two", expect=1)
        states.append(pointers.state())
        other.apply([Put("/b", "one", expect=ABSENT), Put("/c", "one", expect=ABSENT)])
        states.append(pointers.state())
        other.compare_and_delete("/a", expect=2)
        states.append(pointers.state())
        assert len(set(states)) == 5
