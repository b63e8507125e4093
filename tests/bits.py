"""The comparison that the exactness tests make: every bit, NaN and the sign of zero included."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Shape, type and every bit of two arrays; a difference is told in one line.

    Not `actual.tobytes() == expected.tobytes()`: where the variable CI is set, pytest explains two unequal byte
    strings of a few hundred thousand with a full diff, which takes longer than anyone waits.
    """
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    actual, expected = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    as_bytes = [a.reshape(-1).view(np.uint8).reshape(-1, a.itemsize) for a in (actual, expected)]
    different = np.flatnonzero((as_bytes[0] != as_bytes[1]).any(1))
    first = np.unravel_index(different[:1], actual.shape)
    assert not len(different), f"{len(different)} of {actual.size} differ, {actual[first]} for {expected[first]} first"
