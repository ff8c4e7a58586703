"""What is left of the vocabulary while a chain of samplers runs, and what they all do with it."""

from collections import namedtuple

from numba.core import types

from bankml.cpu.compile import inner
from bankml.cpu.exponential import expf
from bankml.cpu.simd import f32 as ir_f32
from bankml.cpu.simd import i32, i64, vector

# SIZE candidates, sorted by logit if SORTED, all of the vocabulary in its order if WHOLE. Addresses of IDS, LOGITS, P,
# ORDER, SPARE_IDS, SPARE (4 bytes for each of N) and STACK; of the ROW, float32 (N,). SEEN and LOSING: tokens in rising
# order, int32, and how often they were seen, or what they lose, float32.
(N, SIZE, SORTED, WHOLE, MIN_KEEP, ROW, IDS, LOGITS, P, ORDER, SPARE_IDS, SPARE, STACK,
 SEEN, SEEN_COUNTS, N_SEEN, LOSING, LOSSES, N_LOSING) = range(19)  # fmt: skip
N_WORDS = 19
f32 = types.float32


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
def room_of(w):
    return Room(w[LOGITS], ints(w[IDS]), floats(w[LOGITS]), floats(w[P]), ints(w[ORDER]), ints(w[SPARE_IDS]),
                floats(w[SPARE]), words_at(w[STACK]))  # fmt: skip


@inner
def reorder(room, size):
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
def top_of(logits, size, is_sorted):
    """The largest logit."""
    top = logits[0]
    if not is_sorted:
        for i in range(1, size):
            top = max(top, logits[i])
    return top


@inner
def softmax(room, size, is_sorted):
    """float32 probabilities; equals llama_sampler_softmax_impl."""
    top, total = top_of(room.logits, size, is_sorted), f32(0)
    for i in range(size):
        p = expf(room.logits[i] - top)
        room.p[i] = p
        total += p
    for i in range(size):
        room.p[i] /= total


@inner
def find(tokens, count, token):
    """Where a token is among `count` in rising order, or -1."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < count and tokens[low] == token else -1
