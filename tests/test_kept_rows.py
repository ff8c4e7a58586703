"""Arrays that are used again: never one that somebody still holds."""

import numpy as np

from bankml.kept_rows import MOST, KeptRows


def test_an_array_is_used_again_once_nobody_holds_it():
    kept = KeptRows(8)
    address = kept.take().ctypes.data
    assert kept.take().ctypes.data == address


def test_what_is_held_is_left_alone_in_whatever_way_it_is_held():
    kept = KeptRows(8)
    held = [kept.take(), kept.take()[0], kept.take()[0][2:5], memoryview(kept.take())]
    spans = [np.asarray(each).__array_interface__["data"][0] // 32 for each in held]
    assert len(set(spans)) == len(held) > MOST
    for number, each in enumerate(held):
        np.asarray(each)[...] = number
    kept.take()[:] = 99
    assert [float(np.asarray(each).flat[0]) for each in held] == [0, 1, 2, 3]
