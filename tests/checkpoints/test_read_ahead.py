"""Reading ahead gives each array to its key, keeps few in memory, and passes errors on; so does checking."""

import threading
import weakref

import numpy as np
import pytest

from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.load import check_all, read_ahead


def test_each_key_gets_its_own_array_in_the_given_order():
    reads = {key: lambda key=key: np.full(3, key) for key in range(20)}
    order = [7, 3, *range(10, 20), 0]
    ahead = read_ahead(reads, order)
    assert list(ahead) == order
    for key in order:
        np.testing.assert_array_equal(ahead[key](), np.full(3, key))


def test_few_arrays_wait_in_memory():
    alive, most, lock = weakref.WeakSet(), [0], threading.Lock()

    class Array:
        pass

    def read():
        with lock:
            array = Array()
            alive.add(array)
            most[0] = max(most[0], len(alive))
            return array

    ahead = read_ahead(dict.fromkeys(range(200), read), range(200))
    for key in range(200):
        ahead[key]()
    assert 1 <= most[0] <= 8  # those that wait or are being read, and the one given out


def test_nothing_is_read_before_it_is_asked_for():
    read = []
    read_ahead({"a": lambda: read.append("a")}, ["a"])
    assert read == []


def test_errors_come_where_their_array_would():
    def broken():
        raise ValueError("array 'b' is damaged")

    ahead = read_ahead({"a": lambda: 1, "b": broken, "c": lambda: 3}, "abc")
    assert ahead["a"]() == 1
    with pytest.raises(ValueError, match="array 'b' is damaged"):
        ahead["b"]()


def test_an_entry_is_checked_in_its_own_way_or_else_read():
    done = []
    entries = [
        Entry("a", (), "float32", read=lambda: done.append("a read"), check=lambda: done.append("a checked")),
        Entry("b", (), "float32", read=lambda: done.append("b read")),
    ]
    check_all(entries)
    assert sorted(done) == ["a checked", "b read"]


def test_a_check_that_fails_says_so():
    def broken():
        raise ValueError("array 'b' is damaged")

    with pytest.raises(ValueError, match="array 'b' is damaged"):
        check_all([Entry("a", (), "float32", read=lambda: 1), Entry("b", (), "float32", read=broken)])
