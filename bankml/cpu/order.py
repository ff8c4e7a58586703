"""Sorting as libstdc++ does it, move by move, so that equal keys come out in the reference's order.

The reference sorts candidates by logit alone with `std::partial_sort` and `std::sort`, neither of which is stable:
which of two equal logits comes first follows from the algorithms' moves. Everything sorts int32 indices (`order`) into
float32 `keys`, the largest key first; both are C pointers.
"""

from numba.core import types

from bankml.cpu.compile import inner
from bankml.cpu.floats import f32_to_bits
from bankml.cpu.level import level
from bankml.cpu.simd import CACHE_LINE, f32, i1, i32, i64, vec, vector

SMALL = 16  # below this, libstdc++'s introsort leaves the work to a last insertion sort
STACK = 3 * 64  # int64 words that `sort` wants beside
BUCKETS, BUCKET_SCALE, BUCKET_SHIFT = 128, 6.4, 64.0  # the reference's, over logits -10..10
HEAP_SORTED = 128  # up to here the reference takes the largest with a heap, beyond with buckets
LANES = {"avx512": 16, "avx2": 8, "generic": 4}[level()]
BLOCK = 64
AHEAD = 8192  # bytes: past the page that the hardware's own prefetching ends with


@vector(returns=types.int64)
def _some_above(b, address, bits):
    """Whether one of BLOCK float32 is larger than the one with these bits, or no number."""
    kind = vec(f32, LANES)
    for line in range(4 * BLOCK // CACHE_LINE):
        b.prefetch(b.pointer(address, AHEAD + CACHE_LINE * line))
    bound = b.broadcast(b.cast(b.ir.trunc(bits, i32), f32), LANES)
    found = b.zero(i1, LANES)
    for i in range(BLOCK // LANES):
        found = b.ir.or_(found, b.ir.fcmp_unordered(">", b.load(b.pointer(address, 4 * LANES * i), kind), bound))
    return b.ir.zext(b.call(f"llvm.vector.reduce.or.v{LANES}i1", i1, [found]), i64)


@inner
def _sift(order, base, keys, hole, size, value):
    """Fill `hole`: pull the smaller child up all the way down, then let `value` climb from there."""
    top, child = hole, hole
    while child < (size - 1) >> 1:
        child = 2 * child + 2
        if keys[order[base + child]] > keys[order[base + child - 1]]:
            child -= 1
        order[base + hole] = order[base + child]
        hole = child
    if size & 1 == 0 and child == (size - 2) >> 1:
        child = 2 * child + 1
        order[base + hole] = order[base + child]
        hole = child
    key = keys[value]
    while hole > top:
        parent = (hole - 1) >> 1
        if not keys[order[base + parent]] > key:
            break
        order[base + hole] = order[base + parent]
        hole = parent
    order[base + hole] = value


@inner
def _make_heap(order, base, keys, size):
    for root in range((size >> 1) - 1, -1, -1):
        _sift(order, base, keys, root, size, order[base + root])


@inner
def _sort_heap(order, base, keys, size):
    for end in range(size - 1, 0, -1):
        displaced = order[base + end]
        order[base + end] = order[base]
        _sift(order, base, keys, 0, end, displaced)


@inner
def partial_sort(order, keys, first, keep, last):
    """Bring the `keep` largest of order[first:last] to its front, sorted; equals `std::partial_sort`."""
    _make_heap(order, first, keys, keep)
    for i in range(first + keep, last):
        incoming = order[i]
        if keys[incoming] > keys[order[first]]:
            order[i] = order[first]
            _sift(order, first, keys, 0, keep, incoming)
    _sort_heap(order, first, keys, keep)


@inner
def largest(address, keys, n, keep, order, with_rest):
    """`partial_sort` of 0..n-1 by the n keys at `address`; False if one is no number (then nothing else counts).

    order: room for `keep`, or `with_rest` for n: then what is not kept follows as the algorithm leaves it. A block in
    which nothing is larger than the least one kept so far moves nothing, and is passed over.
    """
    for i in range(n if with_rest else keep):
        order[i] = i
    for i in range(keep):
        if keys[i] != keys[i]:
            return False
    _make_heap(order, 0, keys, keep)
    i = keep
    while i < n:
        end = min(i + BLOCK, n)
        if end - i == BLOCK and _some_above(address + 4 * i, f32_to_bits(keys[order[0]])) == 0:
            i = end
            continue
        while i < end:
            if not keys[i] <= keys[order[0]]:
                if keys[i] != keys[i]:
                    return False
                if with_rest:
                    order[i] = order[0]
                _sift(order, 0, keys, 0, keep, i)
            i += 1
    _sort_heap(order, 0, keys, keep)
    return True


@inner
def _swap(order, a, b):
    order[a], order[b] = order[b], order[a]


@inner
def _partition(order, keys, first, last):
    """Put the median of three at `first` and split the rest around it; returns where the second part begins."""
    low, high, end = first + 1, first + ((last - first) >> 1), last - 1
    if keys[order[low]] > keys[order[high]]:
        low, high = high, low
    median = end if keys[order[high]] > keys[order[end]] else high
    if keys[order[low]] > keys[order[end]]:
        median = low
    _swap(order, first, median)
    pivot, left, right = keys[order[first]], first + 1, last
    while True:
        while keys[order[left]] > pivot:
            left += 1
        right -= 1
        while pivot > keys[order[right]]:
            right -= 1
        if left >= right:
            return left
        _swap(order, left, right)
        left += 1


@inner
def _insert(order, keys, i):
    """Move order[i] left past every smaller key; something before it is known not to be smaller."""
    value, j = order[i], i - 1
    while keys[value] > keys[order[j]]:
        order[j + 1] = order[j]
        j -= 1
    order[j + 1] = value


@inner
def _introsort(order, keys, first, last, stack):
    """Cut into runs of up to SMALL; `stack` holds parts still to do, and how much deeper they may be cut."""
    depth = 0
    while (last - first) >> (depth + 1):
        depth += 1
    stack[0], stack[1], stack[2] = first, last, 2 * depth
    parts = 1
    while parts > 0:
        parts -= 1
        first, last, depth = stack[3 * parts], stack[3 * parts + 1], stack[3 * parts + 2]
        while last - first > SMALL:
            if depth == 0:
                partial_sort(order, keys, first, last - first, last)
                break
            depth -= 1
            cut = _partition(order, keys, first, last)
            stack[3 * parts], stack[3 * parts + 1], stack[3 * parts + 2] = cut, last, depth
            parts += 1
            last = cut


@inner
def sort(order, keys, first, last, stack):
    """Sort order[first:last]; equals `std::sort`. stack: STACK int64."""
    if last - first < 2:
        return
    _introsort(order, keys, first, last, stack)
    guarded = min(first + SMALL, last)
    for i in range(first + 1, guarded):
        value = order[i]
        if keys[value] > keys[order[first]]:
            for j in range(i, first, -1):
                order[j] = order[j - 1]
            order[first] = value
        else:
            _insert(order, keys, i)
    for i in range(guarded, last):
        _insert(order, keys, i)


@inner
def _bucket(key):
    """Which bucket a logit is in; what C's conversion to int does not hold falls to the bottom."""
    place = types.float32(BUCKET_SCALE) * key + types.float32(BUCKET_SHIFT)
    if not (place > types.float32(0)) or place >= types.float32(2147483648.0):
        return 0
    return min(int(place), BUCKETS - 1)


@inner
def by_buckets(keys, n, keep, order, stack):
    """The `keep` largest of 0..n-1 into `order` (room for n); equals llama_token_data_array_partial_sort.

    Whole buckets from the top are sorted, the last one as far as needed. stack: STACK + BUCKETS int64.
    """
    counts = STACK
    for j in range(BUCKETS):
        stack[counts + j] = 0
    for i in range(n):
        stack[counts + _bucket(keys[i])] += 1
    lowest, have = BUCKETS, 0
    while have < keep:
        lowest -= 1
        size = stack[counts + lowest]
        stack[counts + lowest] = have  # from now on: where the next of this bucket goes
        have += size
    for i in range(n):
        bucket = _bucket(keys[i])
        if bucket >= lowest:
            order[stack[counts + bucket]] = i
            stack[counts + bucket] += 1
    first = 0
    for bucket in range(BUCKETS - 1, lowest, -1):
        sort(order, keys, first, stack[counts + bucket], stack)
        first = stack[counts + bucket]
    partial_sort(order, keys, first, keep - first, have)


@inner
def take_largest(address, keys, n, keep, order, stack):
    """The `keep` largest of 0..n-1 into `order` (room for n), in the way that the reference takes for so many."""
    if keep <= HEAP_SORTED:
        return largest(address, keys, n, keep, order, False)
    by_buckets(keys, n, keep, order, stack)
    return True
