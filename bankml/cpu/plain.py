"""Scalar arithmetic for the kernels' plain twins, which state a float order and serve tests; glibc's math."""

import ctypes
import math
import struct
from fractions import Fraction

import numpy as np


def fma32(a, b, c):
    """a*b + c of float32, rounded once. The product is exact in float64; the sum is rounded to odd there."""
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    if not math.isfinite(total):
        return np.float32(total)
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    if lost and not struct.unpack("<q", struct.pack("<d", total))[0] & 1:
        total = math.nextafter(total, math.copysign(math.inf, lost))
    return np.float32(total)


def fma64(a, b, c):
    """a*b + c of finite float64, rounded once."""
    return float(Fraction(a) * Fraction(b) + Fraction(c)) if c or a * b else a * b + c


def float_bits(value):
    """The bits of a float64, as an integer."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def from_bits(word):
    """The float64 of such bits."""
    return struct.unpack("<d", struct.pack("<Q", word))[0]


def half(bits):
    """float32 of f16 bits."""
    return np.asarray(bits, "<u2").view("<f2").astype(np.float32)


def sum8(v):
    """((0+4)+(2+6)) + ((1+5)+(3+7)) of float32 (8,)."""
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))


def sum8_by_pairs(v):
    """((0+4)+(1+5)) + ((2+6)+(3+7)) of float32 (8,)."""
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]))


def libm(name, *arguments):
    """float32 of glibc's `name`, a function of float32 arguments: expf, sinf, cosf, logf, powf."""
    function = getattr(_LIBM, name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * len(arguments)
    return np.float32(function(*arguments))


_LIBM = ctypes.CDLL("libm.so.6")
