"""The samplers of the chain, compiled: every candidate, sum and order as llama-sampler.cpp of b11192 has them.

A sampler is an entry over the words of a chain (`WORDS`), which hold sizes and addresses; `sampler.py` calls one after
the other. Sums run one by one in float32 (the draw's in double), `expf`, `logf` and `powf` have glibc's bits, and
ties fall as libstdc++ lets them (see `order.py`).
"""

from collections import namedtuple

import numpy as np
from numba.core import types

from bankml.cpu.compile import entry, inner
from bankml.cpu.exponential import expf
from bankml.cpu.logarithm import logf, powf
from bankml.cpu.order import by_buckets, largest, sort, take_largest
from bankml.cpu.simd import f32 as ir_f32
from bankml.cpu.simd import i32, i64, vector

# SIZE candidates, sorted by logit if SORTED, all of the vocabulary in its order if WHOLE. Addresses of IDS, LOGITS, P,
# ORDER, SPARE_IDS, SPARE (4 bytes for each of N) and STACK; of the ROW, float32 (N,). SEEN and LOSING: tokens in rising
# order, int32, and how often they were seen, or what they lose, float32.
(N, SIZE, SORTED, WHOLE, MIN_KEEP, ROW, IDS, LOGITS, P, ORDER, SPARE_IDS, SPARE, STACK,
 SEEN, SEEN_COUNTS, N_SEEN, LOSING, LOSSES, N_LOSING) = range(19)  # fmt: skip
N_WORDS = 19
SMALL_TOP_P, FIRST_TOP_P = 1024, 256  # of more unsorted candidates than this, top-p first tries the largest ones
f32 = types.float32
INFINITY, LOWEST = np.float32(np.inf), np.finfo(np.float32).min


def _pointer_to(kind, element):
    @vector(returns=types.CPointer(kind))
    def pointer(b, address):
        return b.ir.inttoptr(address, element.as_pointer())

    return pointer


floats, ints, words_at = (
    _pointer_to(*kinds) for kinds in ((types.float32, ir_f32), (types.int32, i32), (types.int64, i64))
)
Room = namedtuple("Room", "at ids logits p order spare_ids spare stack")  # the candidates in parallel arrays, and room


@inner
def _room(w):
    return Room(w[LOGITS], ints(w[IDS]), floats(w[LOGITS]), floats(w[P]), ints(w[ORDER]), ints(w[SPARE_IDS]),
                floats(w[SPARE]), words_at(w[STACK]))  # fmt: skip


@inner
def _reorder(room, size):
    """Candidate i becomes the one that was at order[i], for i < size."""
    for values in (room.logits, room.p):
        for i in range(size):
            room.spare[i] = values[room.order[i]]
        for i in range(size):
            values[i] = room.spare[i]
    for i in range(size):
        room.spare_ids[i] = room.ids[room.order[i]]
    for i in range(size):
        room.ids[i] = room.spare_ids[i]


@inner
def _top(logits, size, is_sorted):
    """The largest logit."""
    top = logits[0]
    if not is_sorted:
        for i in range(1, size):
            top = max(top, logits[i])
    return top


@inner
def _softmax(room, size, is_sorted):
    """float32 probabilities; equals llama_sampler_softmax_impl."""
    top, total = _top(room.logits, size, is_sorted), f32(0)
    for i in range(size):
        p = expf(room.logits[i] - top)
        room.p[i] = p
        total += p
    for i in range(size):
        room.p[i] /= total


@inner
def _find(tokens, count, token):
    """Where a token is among `count` in rising order, or -1."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < count and tokens[low] == token else -1


@entry(types.int64, types.int64)
def fill(words):
    """All of the vocabulary as candidates; 0 if a logit is no number."""
    w = words_at(words)
    ids, logits, row, fine = ints(w[IDS]), floats(w[LOGITS]), floats(w[ROW]), True
    for i in range(w[N]):
        ids[i], logits[i] = i, row[i]
        fine &= row[i] == row[i]
    w[SIZE], w[SORTED], w[WHOLE] = w[N], 0, 1
    return fine


@inner
def _fill_largest(w, keep):
    ids, logits, row, order = ints(w[IDS]), floats(w[LOGITS]), floats(w[ROW]), ints(w[ORDER])
    if not largest(w[ROW], row, w[N], keep, order, False):
        return 0
    for i in range(keep):
        ids[i], logits[i] = order[i], row[order[i]]
    w[SIZE], w[SORTED], w[WHOLE] = keep, 1, 0
    return 1


@entry(types.int64, types.int64, types.int64)
def fill_largest(words, keep):
    """The `keep` (1 to HEAP_SORTED) largest of the vocabulary as candidates, the rest untouched; 0 as `fill`."""
    return _fill_largest(words_at(words), keep)


@entry(types.void, types.int64, types.int64)
def keep_largest(words, keep):
    """The `keep` largest of unsorted candidates, sorted; equals llama_token_data_array_partial_sort_inplace."""
    w = words_at(words)
    room = _room(w)
    take_largest(room.at, room.logits, w[SIZE], keep, room.order, room.stack)
    _reorder(room, keep)
    w[SIZE], w[SORTED], w[WHOLE] = keep, 1, 0


@entry(types.void, types.int64, f32, f32, f32)
def penalties(words, repeat, frequency, presence):
    """What was seen lately loses likelihood; equals llama_sampler_penalties_apply."""
    w = words_at(words)
    room, seen, counts, n = _room(w), ints(w[SEEN]), floats(w[SEEN_COUNTS]), w[N_SEEN]
    for j in range(n if w[WHOLE] else w[SIZE]):
        i = seen[j] if w[WHOLE] else j
        place = j if w[WHOLE] else _find(seen, n, room.ids[i])
        if place < 0 or i >= w[SIZE]:
            continue
        logit = room.logits[i]
        logit = logit * repeat if logit <= f32(0) else logit / repeat
        room.logits[i] = logit - (counts[place] * frequency + presence)
    w[SORTED] = 0


@entry(types.void, types.int64)
def dry(words):
    """Tokens lose what DRY found for them."""
    w = words_at(words)
    room, tokens, losses, n = _room(w), ints(w[LOSING]), floats(w[LOSSES]), w[N_LOSING]
    for j in range(n if w[WHOLE] else w[SIZE]):
        i = tokens[j] if w[WHOLE] else j
        place = j if w[WHOLE] else _find(tokens, n, room.ids[i])
        if place >= 0 and i < w[SIZE]:
            room.logits[i] -= losses[place]
    w[SORTED] = 0


@entry(types.void, types.int64, f32)
def top_n_sigma(words, n):
    """Logits over n standard deviations below the largest become -inf; equals llama_sampler_top_n_sigma_apply."""
    w = words_at(words)
    logits, size = floats(w[LOGITS]), w[SIZE]
    if size <= 1:
        return
    top, total, count = logits[0], f32(0), 0
    for i in range(size):
        if logits[i] != -INFINITY:
            top = max(top, logits[i])
            total += logits[i]
            count += 1
    mean = total / f32(count) if count > 0 else f32(0)
    squares = f32(0)
    for i in range(size):
        if logits[i] != -INFINITY:
            apart = types.float64(logits[i] - mean)
            squares = f32(types.float64(squares) + apart * apart)
    deviation = f32(np.sqrt(squares / f32(count))) if count > 0 else f32(0)
    bound = top - n * deviation
    for i in range(size):
        if logits[i] < bound:
            logits[i] = -INFINITY


@entry(types.void, types.int64, f32)
def typical_p(words, p):
    """Of sorted candidates keep those whose surprise is nearest to the entropy until they make up p; not sorted then.

    Equals llama_sampler_typical_apply. Where a probability is 0 the entropy is no number, here as there.
    """
    w = words_at(words)
    room, size = _room(w), w[SIZE]
    _softmax(room, size, True)
    entropy = f32(0)
    for i in range(size):
        entropy += -room.p[i] * logf(room.p[i])
    for i in range(size):
        room.spare[i] = -abs(-logf(room.p[i]) - entropy)
        room.order[i] = i
    sort(room.order, room.spare, 0, size, room.stack)
    total, kept = f32(0), size
    for i in range(size):
        total += room.p[room.order[i]]
        if total > p and (w[MIN_KEEP] == 0 or i >= w[MIN_KEEP] - 1):
            kept = i + 1
            break
    _reorder(room, kept)
    w[SIZE], w[SORTED], w[WHOLE] = kept, 0, 0


@inner
def _top_p(w, p):
    room, total = _room(w), f32(0)
    _softmax(room, w[SIZE], True)
    for i in range(w[SIZE]):
        total += room.p[i]
        if total >= p and i + 1 >= w[MIN_KEEP]:
            w[SIZE] = i + 1
            break


@entry(types.void, types.int64, f32)
def top_p(words, p):
    """Of sorted candidates keep the fewest whose probabilities reach p; equals llama_sampler_top_p_apply."""
    _top_p(words_at(words), p)


@entry(types.void, types.int64, f32)
def top_p_unsorted(words, p):
    """The same of unsorted ones, of which many are not sorted at once; they are sorted then."""
    w = words_at(words)
    room, size, total = _room(w), w[SIZE], f32(0)
    _softmax(room, size, False)
    sure = size if size <= SMALL_TOP_P else FIRST_TOP_P
    if sure == size:
        take_largest(room.at, room.logits, size, size, room.order, room.stack)
    else:
        by_buckets(room.logits, size, sure, room.order, room.stack)
    kept = size
    for i in range(size):
        total += room.p[room.order[i]]
        if total >= p and i + 1 >= w[MIN_KEEP]:
            kept = i + 1
            break
        if i == sure - 1 and sure < size:
            sure = size
            by_buckets(room.logits, size, size, room.order, room.stack)
    _reorder(room, kept)
    w[SIZE], w[SORTED], w[WHOLE] = kept, 1, 0


@inner
def _min_p(w, p):
    logits, kept = floats(w[LOGITS]), 1
    bound = logits[0] + logf(p)
    while kept < w[SIZE] and (logits[kept] >= bound or kept < w[MIN_KEEP]):
        kept += 1
    w[SIZE] = kept


@entry(types.int64, types.int64, f32)
def min_p(words, p):
    """Drop what is less likely than p times the likeliest; equals llama_sampler_min_p_apply.

    Of unsorted candidates at least `min_keep` must be left, else nothing is done and the result is 0: sort them first.
    """
    w = words_at(words)
    if w[SORTED]:
        _min_p(w, p)
        return 1
    room, size, kept = _room(w), w[SIZE], 0
    bound = _top(room.logits, size, False) + logf(p)
    for i in range(size):
        kept += room.logits[i] >= bound
    if kept < max(1, w[MIN_KEEP]):
        return 0
    kept = 0
    for i in range(size):
        if room.logits[i] >= bound:
            room.ids[kept], room.logits[kept] = room.ids[i], room.logits[i]
            kept += 1
    w[SIZE], w[WHOLE] = kept, 0
    return 1


@entry(types.void, types.int64, f32)
def xtc(words, threshold):
    """Of sorted candidates drop all likely ones but the last of them; equals what follows a lot won in
    llama_sample_xtc_apply."""
    w = words_at(words)
    room, size, last = _room(w), w[SIZE], 0
    _softmax(room, size, True)
    for i in range(size):
        if not room.p[i] >= threshold:
            break
        last = i
    if last == 0 or size - last < w[MIN_KEEP]:
        return
    for i in range(size - last):
        room.ids[i], room.logits[i] = room.ids[i + last], room.logits[i + last]
    w[SIZE] = size - last


@inner
def _divide(logits, size, temperature):
    """Divide by the temperature; with none, all but the first of the largest become -inf."""
    if temperature > f32(0):
        for i in range(size):
            logits[i] /= temperature
        return
    best = 0
    for i in range(1, size):
        if logits[i] > logits[best]:
            logits[best] = -INFINITY
            best = i
        else:
            logits[i] = -INFINITY


@entry(types.void, types.int64, f32)
def temperature(words, value):
    """Divide by the temperature; equals llama_sampler_temp_impl."""
    w = words_at(words)
    _divide(floats(w[LOGITS]), w[SIZE], value)


@entry(types.void, types.int64, f32, f32, f32)
def dynamic_temperature(words, middle, reach, exponent):
    """Divide sorted candidates by the temperature that their entropy asks for; equals llama_sampler_temp_ext_apply."""
    w = words_at(words)
    room, size = _room(w), w[SIZE]
    low, high = max(f32(0), middle - reach), middle + reach
    most, entropy = -logf(f32(1) / f32(size)), f32(0)
    _softmax(room, size, True)
    for i in range(size):
        if room.p[i] > f32(0):
            entropy -= room.p[i] * logf(room.p[i])
    _divide(room.logits, size, low + (high - low) * powf(entropy / most, exponent))


@inner
def _draw(w, uniform):
    room, size = _room(w), w[SIZE]
    top, total = _top(room.logits, size, w[SORTED]), 0.0
    if not -INFINITY < top < INFINITY:
        return -1
    for i in range(size):
        p = expf(room.logits[i] - top)
        room.p[i] = p
        total += types.float64(p)
    running, target, chosen = 0.0, total * uniform, -1
    for i in range(size):
        if chosen < 0:
            running += types.float64(room.p[i])
            if running >= target:
                chosen = i
        room.p[i] = f32(types.float64(room.p[i]) / total)
    return types.int64(room.ids[chosen if chosen >= 0 else size - 1])


@entry(types.int64, types.int64, types.float64)
def draw(words, uniform):
    """The token a draw in [0, 1) falls on, probabilities on the way; equals llama_sampler_dist_apply.

    -1 if the largest logit is not finite.
    """
    return _draw(words_at(words), uniform)


@entry(types.int64, types.int64, types.int64, f32, f32, f32, types.float64)
def default_chain(words, keep, top, least, value, uniform):
    """`fill_largest`, `top_p`, `min_p`, `temperature` and `draw` in one: after a decoded token each call is cold."""
    w = words_at(words)
    if not _fill_largest(w, keep):
        return -1
    if top < f32(1):
        _top_p(w, top)
    if least > f32(0):
        _min_p(w, least)
    _divide(floats(w[LOGITS]), w[SIZE], value)
    return _draw(w, uniform)


@entry(types.void, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
def log_probabilities(row, n, token, count, order, out):
    """What the model itself thinks: equals get_token_probabilities and completion_token_output::logarithm.

    row: float32 (n,) logits; order: int32 (n,), whose first `count` (1 to n) are the likeliest tokens then;
    out: float32 (1 + count,), the natural logarithms for `token` and for those. The sum runs over the vocabulary in the
    order in which the partial sort leaves it.
    """
    logits, places, result = floats(row), ints(order), floats(out)
    largest(row, logits, n, count, places, True)
    top, total = logits[places[0]], f32(0)
    for i in range(n):
        total += expf(logits[places[i]] - top)
    for i in range(count + 1):
        p = expf(logits[token if i == 0 else places[i - 1]] - top) / total
        result[i] = LOWEST if p == f32(0) else logf(p)


@entry(types.void, types.int64)
def sort_by_probability(words):
    """What a chain left, by probability, unless it is sorted by logit (common_sampler_get_candidates)."""
    w = words_at(words)
    room = _room(w)
    if w[SORTED]:
        return
    for i in range(w[SIZE]):
        room.order[i] = i
    sort(room.order, room.p, 0, w[SIZE], room.stack)
    _reorder(room, w[SIZE])
    w[SORTED] = 1
