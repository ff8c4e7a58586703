"""The plain twin of `order.py`: libstdc++'s `partial_sort` and `sort`, followed step by step; for tests.

Both sort indices into `keys` (a list of numbers) from the largest key down, in place.
"""

SMALL = 16  # below this, libstdc++'s introsort leaves the work to a last insertion sort


def partial_sort(order: list[int], keys: list[float], first: int, keep: int, last: int):
    """Bring the `keep` largest of order[first:last] to its front, sorted; the rest is left as the heap left it."""
    heap = order[first : first + keep]
    if not heap:
        return
    for root in range((len(heap) - 2) // 2, -1, -1):
        _sift(heap, keys, root, len(heap), heap[root])
    for i in range(first + keep, last):
        if keys[order[i]] > keys[heap[0]]:
            order[i], incoming = heap[0], order[i]
            _sift(heap, keys, 0, len(heap), incoming)
    for end in range(len(heap) - 1, 0, -1):
        largest, displaced = heap[0], heap[end]
        heap[end] = largest
        _sift(heap, keys, 0, end, displaced)
    order[first : first + keep] = heap


def _sift(heap, keys, hole, size, value):
    """Fill `hole`: pull the smaller child up all the way down, then let `value` climb from there."""
    top, child = hole, hole
    while child < (size - 1) // 2:
        child = 2 * child + 2
        if keys[heap[child]] > keys[heap[child - 1]]:
            child -= 1
        heap[hole], hole = heap[child], child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * child + 1
        heap[hole], hole = heap[child], child
    parent = (hole - 1) // 2
    while hole > top and keys[heap[parent]] > keys[value]:
        heap[hole], hole = heap[parent], parent
        parent = (hole - 1) // 2
    heap[hole] = value


def sort(order: list[int], keys: list[float], first: int, last: int):
    """Sort order[first:last]: introsort down to short runs, then insertion sort."""
    if last - first < 2:
        return
    _introsort(order, keys, first, last, 2 * ((last - first).bit_length() - 1))
    guarded = min(first + SMALL, last)
    for i in range(first + 1, guarded):
        if keys[order[i]] > keys[order[first]]:
            order.insert(first, order.pop(i))
        else:
            _insert(order, keys, i)
    for i in range(guarded, last):
        _insert(order, keys, i)


def _introsort(order, keys, first, last, depth):
    while last - first > SMALL:
        if depth == 0:
            partial_sort(order, keys, first, last - first, last)
            return
        depth -= 1
        cut = _partition(order, keys, first, last)
        _introsort(order, keys, cut, last, depth)
        last = cut


def _partition(order, keys, first, last):
    """Put the median of three at `first` and split the rest around it; returns where the second part begins."""
    second, middle, end = first + 1, first + (last - first) // 2, last - 1
    low, high = (second, middle) if not keys[order[second]] > keys[order[middle]] else (middle, second)
    median = end if keys[order[high]] > keys[order[end]] else high
    if keys[order[low]] > keys[order[end]]:
        median = low
    order[first], order[median] = order[median], order[first]
    pivot, left, right = keys[order[first]], second, last
    while True:
        while keys[order[left]] > pivot:
            left += 1
        right -= 1
        while pivot > keys[order[right]]:
            right -= 1
        if left >= right:
            return left
        order[left], order[right] = order[right], order[left]
        left += 1


def _insert(order, keys, i):
    """Move order[i] left past every smaller key; something before it is known not to be smaller."""
    value, j = order[i], i - 1
    while keys[value] > keys[order[j]]:
        order[j + 1] = order[j]
        j -= 1
    order[j + 1] = value
