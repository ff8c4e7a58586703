"""The samplers of the chain, compiled: every candidate, sum and order as llama-sampler.cpp of b11192 has them.

A sampler is an entry over the words of a chain (see `candidates.py`); `sampler_chain.py` calls one after the other.
Sums run one by one in float32 (the draw's in double), `expf`, `logf` and `powf` have glibc's bits, and ties fall as
libstdc++ lets them (see `order.py`).
"""

import numpy as np
from numba.core import types

from bankml.cpu.candidates import (
    IDS,
    LOGITS,
    LOSING,
    LOSSES,
    MIN_KEEP,
    N_LOSING,
    N_SEEN,
    ORDER,
    ROW,
    SEEN,
    SEEN_COUNTS,
    SIZE,
    SORTED,
    WHOLE,
    N,
    f32,
    find,
    floats,
    ints,
    reorder,
    room_of,
    softmax,
    top_of,
    words_at,
)
from bankml.cpu.compile import entry, inner
from bankml.cpu.exponential import expf
from bankml.cpu.logarithm import logf, powf
from bankml.cpu.order import by_buckets, largest, sort, take_largest

SMALL_TOP_P, FIRST_TOP_P = 1024, 256  # of more unsorted candidates than this, top-p first tries the largest ones
INFINITY, LOWEST = np.float32(np.inf), np.finfo(np.float32).min


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
    room = room_of(w)
    take_largest(room.at, room.logits, w[SIZE], keep, room.order, room.stack)
    reorder(room, keep)
    w[SIZE], w[SORTED], w[WHOLE] = keep, 1, 0


@entry(types.void, types.int64, f32, f32, f32)
def penalties(words, repeat, frequency, presence):
    """What was seen lately loses likelihood; equals llama_sampler_penalties_apply."""
    w = words_at(words)
    room, seen, counts, n = room_of(w), ints(w[SEEN]), floats(w[SEEN_COUNTS]), w[N_SEEN]
    for j in range(n if w[WHOLE] else w[SIZE]):
        i = seen[j] if w[WHOLE] else j
        place = j if w[WHOLE] else find(seen, n, room.ids[i])
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
    room, tokens, losses, n = room_of(w), ints(w[LOSING]), floats(w[LOSSES]), w[N_LOSING]
    for j in range(n if w[WHOLE] else w[SIZE]):
        i = tokens[j] if w[WHOLE] else j
        place = j if w[WHOLE] else find(tokens, n, room.ids[i])
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
    room, size = room_of(w), w[SIZE]
    softmax(room, size, True)
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
    reorder(room, kept)
    w[SIZE], w[SORTED], w[WHOLE] = kept, 0, 0


@inner
def _top_p(w, p):
    room, total = room_of(w), f32(0)
    softmax(room, w[SIZE], True)
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
    room, size, total = room_of(w), w[SIZE], f32(0)
    softmax(room, size, False)
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
    reorder(room, kept)
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
    room, size, kept = room_of(w), w[SIZE], 0
    bound = top_of(room.logits, size, False) + logf(p)
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
    room, size, last = room_of(w), w[SIZE], 0
    softmax(room, size, True)
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
    room, size = room_of(w), w[SIZE]
    low, high = max(f32(0), middle - reach), middle + reach
    most, entropy = -logf(f32(1) / f32(size)), f32(0)
    softmax(room, size, True)
    for i in range(size):
        if room.p[i] > f32(0):
            entropy -= room.p[i] * logf(room.p[i])
    _divide(room.logits, size, low + (high - low) * powf(entropy / most, exponent))


@inner
def _draw(w, uniform):
    room, size = room_of(w), w[SIZE]
    top, total = top_of(room.logits, size, w[SORTED]), 0.0
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
    room = room_of(w)
    if w[SORTED]:
        return
    for i in range(w[SIZE]):
        room.order[i] = i
    sort(room.order, room.p, 0, w[SIZE], room.stack)
    reorder(room, w[SIZE])
    w[SORTED] = 1
