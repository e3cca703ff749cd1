"""The held names in order: a listing pays for what changed since the last one, a bounded number of names at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import index
from holdfast.core.index import OrderedNames

NAMES = 20_000


class Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __lt__(self, other: str) -> bool:
        Compared.times += 1
        return str.__lt__(self, other)


@pytest.fixture
def many() -> Iterator[OrderedNames]:
    """So many names, in order."""
    names = OrderedNames()
    for number in range(NAMES):
        names.add(Compared(f"job/{number:06}"))
    list(names.walk())
    yield names
    Compared.times = 0


def test_listing_after_one_change_compares_few_names(many: OrderedNames) -> None:
    """One claim among 20,000 costs the next listing some steps, not a look at all of them."""
    Compared.times = 0
    many.add(Compared("job/010000x"))
    many.remove(Compared("job/000007"))
    walk = many.walk("job/01", after="job/009999")
    assert [next(walk), next(walk)] == ["job/010000", "job/010000x"]
    assert Compared.times < 200


def test_names_are_sorted_in_slices(many: OrderedNames) -> None:
    """After many changes a slice puts as many names in order as it is told, and each costs a few steps."""
    for number in range(0, NAMES, 2):
        many.remove(Compared(f"job/{number:06}"))
        many.add(Compared(f"more/{number:06}"))
    assert many.unordered == NAMES
    slices = 0
    while many.unordered:
        before, Compared.times = many.unordered, 0
        many.put_in_order(1_000)
        assert before - many.unordered == 1_000
        assert Compared.times < 1_000 * 40
        slices += 1
    assert slices == NAMES // 1_000
    assert list(many.walk("more/")) == [f"more/{number:06}" for number in range(0, NAMES, 2)]
    assert list(many.walk("job/")) == [f"job/{number:06}" for number in range(1, NAMES, 2)]


def test_counting_a_prefix_reads_few_names(many: OrderedNames) -> None:
    """How many names have a prefix is found by place."""
    Compared.times = 0
    assert (many.count("job/01"), many.count("job/"), many.count(""), many.count("x")) == (10_000, NAMES, NAMES, 0)
    assert Compared.times < 200


LETTERS = st.text(alphabet="ab/ä\ud7ff\U0010ffff", min_size=1, max_size=4)


@given(
    st.lists(LETTERS, unique=True),
    st.lists(st.tuples(LETTERS, st.integers(0, 5))),
    st.sampled_from(["", "a", "ä", "\U0010ffff"]),
)
def test_ordered_names_are_a_sorted_set_in_small_blocks(
    first: list[str], changes: list[tuple[str, int]], prefix: str
) -> None:
    """However small the blocks and wherever a slice ends, a walk shows the set in byte order, and counts are right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "BLOCK_NAMES", 4)
        names, plain = OrderedNames(), set(first)
        names.build(first)
        for name, names_max in changes:
            (names.remove if name in plain else names.add)(name)
            plain ^= {name}
            names.put_in_order(names_max)
            assert len(names) == len(plain)
            if names_max == 0:
                wanted = sorted((each for each in plain if each.startswith(prefix)), key=str.encode)
                assert list(names.walk(prefix)) == wanted
                assert names.count(prefix) == len(wanted)
                assert list(names.walk(prefix, name)) == [each for each in wanted if each > name]
