"""Pages have one owner each unless their contents are equal, and an unused prefix goes before a used one."""

from k2jax.inference.forward import SCRATCH_PAGE
from k2jax.inference.page_pool import PagePool, digests


def test_digests_are_of_everything_before():
    a, b = list(digests(range(12), 4, 0)), list(digests([*range(8), 0, 0, 0, 0], 4, 0))
    assert len(a) == 3 and a[:2] == b[:2] and a[2] != b[2]
    assert list(digests([9, 1, 2, 3, *range(4, 12)], 4, 0))[1] != a[1]  # the same page after another beginning
    assert next(digests(range(12), 4, 1)) != a[0]
    assert list(digests(range(3), 4, 0)) == []
    assert len(list(digests(range(11), 4, 0))) == 2
    assert list(digests(range(12), 4, 0, first=2, before=a[1])) == a[2:]


def test_a_prefix_is_found_as_far_as_it_goes():
    pages = PagePool(6, 4)
    mine = [pages.take() for _ in range(3)]
    for page, digest in zip(mine, digests(range(12), 4, 0), strict=True):
        pages.cache_prefix(page, digest)
    assert pages.find(digests([*range(8), 0, 0, 0, 0], 4, 0)) == mine[:2]
    assert pages.find(digests([5, *range(11)], 4, 0)) == []
    assert SCRATCH_PAGE not in mine and (pages.total, pages.in_use, pages.available) == (5, 3, 2)


def test_the_longest_unused_prefix_is_forgotten_first():
    pages = PagePool(4, 1)
    first, second = pages.take(), pages.take()
    pages.cache_prefix(first, b"first")
    pages.cache_prefix(second, b"second")
    pages.release(first)
    pages.release(second)
    assert (pages.cached, pages.in_use, pages.available) == (2, 0, 3)
    pages.share(first)
    pages.release(first)  # used again: now the second is the longest unused
    taken = {pages.take(), pages.take()}
    assert second in taken and first not in taken
    assert pages.find(iter([b"second"])) == [] and pages.find(iter([b"first"])) == [first]


def test_a_shared_page_stays_until_its_last_user_leaves():
    pages = PagePool(2, 1)
    page = pages.take()
    pages.cache_prefix(page, b"x")
    pages.share(page)
    pages.release(page)
    assert pages.in_use == 1 and pages.available == 0
    pages.drop_all()
    pages.release(page)
    assert pages.in_use == 0 and pages.cached == 0 and pages.take() == page
