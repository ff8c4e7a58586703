"""The header parser against hostile and broken files; what it accepts is what the reference's parser accepts."""

import ctypes
import os
import random
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from bankml import blocks
from bankml.errors import BankmlError, NeedMore, Refused, UsageError
from bankml.gguf import Map, check_spans, read_header
from bankml.guard import guard
from tests.gguf_writer import F16, F32, Q1_0, Q2_0, T, announce, filled, gguf, model, pad, text, value

ONE = T("t", (32,), F32)
TERNARY = [T("a", (128, 32), Q2_0), T("b", (128, 32), Q2_0)]


def claim(kv: bytes = b"", tensors: bytes = b"", n_kv=1, n_tensors=0) -> bytes:
    """A file from raw parts."""
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + kv + tensors


def array_of(kind: int, count: int, content: bytes = b"") -> bytes:
    return claim(text("k") + struct.pack("<iiQ", 9, kind, count) + content)


def aligned(kind, alignment, align=32):
    return gguf({"general.alignment": (kind, alignment)}, [ONE, T("u", (3,))], align=align)


# name -> (bytes, what read_header does, words of its message): the reference accepts where the second is None.
CASES = {
    "a plain file": (gguf({"k": ("str", "v")}, [ONE]), None, ""),
    "no tensors": (gguf({"k": ("str", "v")}), None, ""),
    "nothing at all": (gguf(), None, ""),
    "version 2": (gguf({}, [ONE], version=2), None, ""),
    "version 0": (gguf({}, [ONE], version=0), Refused, "version 0"),
    "version 1": (gguf({}, [ONE], version=1), Refused, "version 1"),
    "version 4": (gguf({}, [ONE], version=4), Refused, "version 4"),
    "other byte order": (gguf({}, [ONE], version=b"\0\0\0\3"), Refused, "byte order"),
    "HTML": (b"<html><body>Not found</body></html>", Refused, "not GGUF; starts with '<htm'"),
    "binary": (b"\x00\x1b[2Jxxxxxxxxxxxxxxxxxxxx", Refused, r"starts with '\x00\x1b[2'"),
    "empty": (b"", NeedMore, "0 bytes"),
    "three bytes": (b"GGU", NeedMore, "3 bytes"),
    "magic only": (b"GGUF", NeedMore, "version"),
    "2^63 tensors": (claim(n_kv=0, n_tensors=2**63), Refused, "claims 9223372036854775808 tensors"),
    "2^62 keys": (claim(n_kv=2**62), Refused, "claims 4611686018427387904 keys"),
    "many tensors, few bytes": (claim(n_kv=0, n_tensors=1000), NeedMore, "1000 tensors needs 24000 bytes"),
    "key of 2^62 bytes": (claim(struct.pack("<Q", 2**62) + bytes(40)), Refused, "claims a length of 46116860184"),
    "key that is cut": (claim(struct.pack("<Q", 60) + bytes(40)), NeedMore, "key 0 needs 60 bytes"),
    "u8 array of 2^40": (array_of(0, 2**40, bytes(99)), Refused, "the array 'k' claims a length of 1099511627776"),
    "u32 array of 2^63": (array_of(4, 2**63, bytes(99)), Refused, "9223372036854775808"),
    "u32 array that is cut": (array_of(4, 26, bytes(99)), NeedMore, "the array 'k' needs 104 bytes"),
    "string array of 2^29": (array_of(8, 2**29, bytes(99)), NeedMore, "the array 'k'"),
    "string of 2^62 in an array": (array_of(8, 2, text("a") + struct.pack("<Q", 2**62)), Refused, "string 1 of the"),
    "string of 2^64-1 in an array": (array_of(8, 2, struct.pack("<Q", 2**64 - 1) * 2), Refused, "string 0 of the"),
    "cut string in an array": (array_of(8, 2, text("a") + struct.pack("<Q", 9)), NeedMore, "string 1 of the array 'k'"),
    "array of arrays": (array_of(9, 1, bytes(99)), Refused, "an array of arrays"),
    "array of type 13": (array_of(13, 1, bytes(99)), Refused, "unknown value type 13"),
    "value of type 13": (claim(text("k") + struct.pack("<iQ", 13, 0)), Refused, "unknown value type 13"),
    "value of type -1": (claim(text("k") + struct.pack("<iQ", -1, 0)), Refused, "unknown value type -1"),
    "empty arrays": (gguf({"s": ("arr[str]", []), "n": ("arr[u32]", [])}, [ONE]), None, ""),
    "duplicate key": (gguf([("k", "u8", 1), ("k", "u8", 2)]), Refused, "duplicate key 'k'"),
    "empty key": (gguf([("", "u8", 1), ("k", "u8", 2)]), Refused, "key 0 is empty"),
    "duplicate tensor": (gguf({}, [ONE, ONE]), Refused, "duplicate tensor 't'"),
    "alignment 0": (aligned("u32", 0), Refused, "general.alignment is 0"),
    "alignment 24": (aligned("u32", 24, 24), Refused, "general.alignment is 24, which is not a power of two"),
    "alignment as i32": (aligned("i32", 32), Refused, "general.alignment must be u32, not i32"),
    "alignment 2^31": (aligned("u32", 2**31), Refused, "general.alignment is 2147483648"),
    "alignment 64": (aligned("u32", 64, 64), None, ""),
    "alignment 1": (aligned("u32", 1, 1), None, ""),
    "name of 63 bytes": (gguf({}, [T("n" * 63, (32,))]), None, ""),
    "name of 64 bytes": (gguf({}, [T("n" * 64, (32,))]), Refused, "64 bytes, 63 is the most: 'nnn"),
    "name that is no UTF-8": (gguf({}, [T(b"a\xff\x1b", (32,))]), None, ""),
    "4 dimensions": (gguf({}, [T("t", (4, 2, 2, 2))]), None, ""),
    "5 dimensions": (gguf({}, [T("t", (4, 2, 2, 2, 1))]), Refused, "tensor 't' has 5 dimensions"),
    "no dimension": (gguf({}, [T("t", ())]), None, ""),
    "dimension 0": (gguf({}, [T("t", (32, 0))]), None, ""),
    "negative dimension": (gguf({}, [T("t", (32, -1), data=bytes(32))]), Refused, "tensor 't' has a negative dim"),
    "2^64 elements": (gguf({}, [T("t", (2**32, 2**32), data=b"")]), Refused, f"has {2**64} elements"),
    "2^64 bytes": (gguf({}, [T("t", (2**62, 1), data=b"")]), Refused, f"takes {2**64} bytes"),
    "elements that wrap to few": (gguf({}, [T("t", (2**33, 2**31 + 1), data=b"")]), Refused, "elements"),
    "row no multiple of the block": (gguf({}, [T("t", (96, 2), Q1_0, data=bytes(36))]), Refused, "block, 128"),
    "type 142": (gguf({}, [T("t", (64, 2), 142)]), Refused, "tensor 't' has the unknown type id 142; bankml runs Q1_0"),
    "type 43": (gguf({}, [T("t", (64, 2), 43)]), Refused, "tensor 't' has the unknown type id 43"),
    "type -1": (gguf({}, [T("t", (64, 2), -1)]), Refused, "tensor 't' has the unknown type id -1"),
    "type 4, removed": (gguf({}, [T("t", (64, 2), 4)]), Refused, "q4_2 (type 4), which ggml has removed"),
    "type 12": (gguf({}, [T("t", (256, 2), 12)]), None, ""),
    "tensors with a gap": (gguf({}, [ONE, T("u", (32,), offset=256)]), Refused, "'u' is at offset 256 where 128 was"),
    "tensors that overlap": (gguf({}, [ONE, T("u", (32,), offset=0)]), Refused, "'u' is at offset 0 where 128"),
    "first tensor late": (gguf({}, [T("u", (32,), offset=32)]), Refused, "'u' is at offset 32 where 0 was"),
    "ternary, group 64": (gguf({}, TERNARY), None, ""),
    "ternary, group 128": (
        gguf({}, [T("a", (128, 32), Q2_0, bytes(1088)), T("b", (128, 32), Q2_0, bytes(1088))]),
        Refused,
        "tensor 'b' is at offset 1088 where 1152 was expected: group-128 file; get the g64 or Q1_0 build",
    ),
    "ternary, neither group": (
        gguf({}, [TERNARY[0], T("b", (128, 32), Q2_0, offset=1120)]),
        Refused,
        "tensor 'b' is at offset 1120 where 1152 was expected",
    ),
    "padding cut after the announcements": (gguf({}, [ONE])[:57], NeedMore, "the data starts at byte 64"),
}


# Refused by bankml alone: the reference counts these elements in 64 bits, gets 0, and takes the tensor for empty.
STRICTER = {"2^64 elements"}


@pytest.mark.parametrize("name", CASES)
def test_cases(tmp_path, name):
    content, error, words = CASES[name]
    path = tmp_path / "f.gguf"
    path.write_bytes(content)
    if error is None:
        read_header(path)
        return
    with pytest.raises(error) as caught:
        read_header(path)
    message = str(caught.value)
    assert words in message and str(path) in message and message.isprintable()


@pytest.fixture
def reference_accepts(reference):
    """Whether gguf_init_from_file of the reference takes a file (its header; it does not look at the data)."""

    class Params(ctypes.Structure):
        """struct gguf_init_params { bool no_alloc; struct ggml_context ** ctx; };"""

        _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))

    base = ctypes.CDLL(str(reference.paths["base"]))
    # struct gguf_context * gguf_init_from_file(const char * fname, struct gguf_init_params params);
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, Params]
    # void gguf_free(struct gguf_context * ctx);
    base.gguf_free.argtypes = [ctypes.c_void_p]

    def accepts(path) -> bool:
        context = base.gguf_init_from_file(os.fsencode(path), Params(True, None))
        if context:
            base.gguf_free(context)
        return bool(context)

    return accepts


def test_the_reference_takes_what_we_take(tmp_path, reference_accepts):
    path = tmp_path / "f.gguf"
    for name, (content, error, _) in CASES.items():
        path.write_bytes(content)
        assert reference_accepts(path) == (error is None or name in STRICTER), name


def mutations(count: int, seed: int):
    """Seeded damage to a small model's header: flipped bits, odd bytes, cuts."""
    source = random.Random(seed)
    kv, tensors = model(vocab=6, n_layer=1)
    whole = gguf(kv | {"general.alignment": ("u32", 32), "k": ("arr[bool]", [True, False])}, tensors)
    header = len(whole) - sum(len(pad(t.bytes(), 32)) for t in tensors)
    for _ in range(count):
        damaged = bytearray(whole)
        for _ in range(source.choice((1, 1, 1, 2, 4))):
            at = source.randrange(header)
            flipped = damaged[at] ^ 1 << source.randrange(8)
            damaged[at] = source.choice((flipped, 0, 1, 127, 128, 255, source.randrange(256)))
        yield bytes(damaged[: source.randrange(len(damaged))] if source.random() < 0.1 else damaged)


def test_fuzz_against_the_reference(tmp_path, reference_accepts):
    path, seen = tmp_path / "f.gguf", set()
    for content in mutations(2000, seed=11):
        path.write_bytes(content)
        try:
            read_header(path)
            ours = True
        except BankmlError as error:
            ours = "zero byte" in str(error) and None  # a name cut short at a zero byte: refused by us alone
        theirs = reference_accepts(path)
        assert ours in (None, theirs)
        seen.add(theirs)
    assert seen == {True, False}


def test_fuzz_never_raises_anything_else(tmp_path):
    path, verdicts = tmp_path / "f.gguf", set()
    for content in mutations(1500, seed=12):
        path.write_bytes(content)
        verdict = guard(path)
        assert all(reason and reason.isprintable() for reason in verdict.reasons)
        verdicts.add(verdict.verdict)
    assert verdicts == {"play", "refuse", "need_more"}


def test_every_cut_needs_more(tmp_path):
    """Whatever is cut off a good file, the rest is never called wrong: only the padding at the end can go."""
    kv, tensors = model(vocab=6, n_layer=1, ff=128)
    whole = gguf(kv, tensors)
    path = tmp_path / "f.gguf"
    last = len(whole) - len(pad(tensors[-1].bytes(), 32)) + len(tensors[-1].bytes())
    header = len(whole) - sum(len(pad(t.bytes(), 32)) for t in tensors)
    for size in (*range(header + 64), *range(header + 64, last, 97), last - 1):
        path.write_bytes(whole[:size])
        verdict = guard(path)
        assert (verdict.verdict, len(verdict.reasons)) == ("need_more", 1), (size, verdict.reasons)
    path.write_bytes(whole[:last])
    assert guard(path).verdict == "play"


def test_the_first_tensor_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "f.gguf"
    whole = gguf({}, [ONE, T("u", (32,)), T("v", (32,))])
    path.write_bytes(whole[:-200])
    want = rf"tensor 'u' needs the file to have {len(whole) - 128} bytes, it has {len(whole) - 200}"
    with pytest.raises(NeedMore, match=want):
        check_spans(read_header(path))


def test_bytes_after_the_data_are_fine(tmp_path):
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf(*model()) + b"extra")
    assert guard(path).verdict == "play"


def test_a_last_tensor_of_group_128_is_not_called_cut(tmp_path):
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf({}, [T("a", (128, 32), Q2_0, bytes(1088))]))
    with pytest.raises(
        Refused, match=r"tensor 'a' needs \d+ bytes, the file has \d+: group-128 file; get the g64 or Q1_0"
    ):
        check_spans(read_header(path))


def test_no_such_file(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            read_header(path)


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_header(tmp_path / "pipe")


def test_values(tmp_path):
    """Every kind of value comes back as it was written."""
    words = ["", "a", "\u00e9\U0001f680", "x" * 300]
    kv = {kind: (kind, 1) for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "bool")}
    kv |= {"f32": ("f32", 0.1), "f64": ("f64", 0.1), "str": ("str", "caf\u00e9"), "bad": ("str", b"\xff")}
    kv |= {"words": ("arr[str]", words), "bools": ("arr[bool]", [True, False]), "none": ("arr[str]", [])}
    kv |= {f"arr {kind}": (f"arr[{kind}]", [1, 2, 3]) for kind in ("u8", "i16", "u32", "i32", "f32", "u64", "f64")}
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf(kv))
    got = read_header(path).kv
    assert list(got) == list(kv) and [got.kind(key) for key in kv] == [kind for kind, _ in kv.values()]
    assert got["u8"] == 1 and got["bool"] is True and got["str"] == "caf\u00e9" and got["bad"] == "\ufffd"
    assert got["f32"] == float(np.float32(0.1)) and got["f64"] == 0.1
    raw = [word.encode() for word in words]
    assert list(got["words"]) == got["words"].all() == got["words"][:] == raw
    assert got["words"][-1] == raw[-1] and len(got["words"]) == 4 and got["none"].all() == []
    with pytest.raises(IndexError):
        got["words"][4]
    assert got["bools"].tolist() == [True, False] and got["arr f32"].tolist() == [1.0, 2.0, 3.0]
    assert not got["arr u32"].flags.writeable


def test_block_sizes_are_the_references(reference):
    """Every type id up to ggml's last: name, weights and bytes of a block, as the shipped library has them."""
    base = ctypes.CDLL(str(reference.paths["base"]))
    base.ggml_type_name.restype = ctypes.c_char_p  # const char * ggml_type_name(enum ggml_type type);
    base.ggml_type_size.restype = ctypes.c_size_t  # size_t ggml_type_size(enum ggml_type type);
    base.ggml_blck_size.restype = ctypes.c_int64  # int64_t ggml_blck_size(enum ggml_type type);
    for i, block in blocks.TYPES.items():
        assert (block.block_size, block.block_bytes) == (base.ggml_blck_size(i), base.ggml_type_size(i))
        assert block.block_size == 0 or block.name == base.ggml_type_name(i).decode()
        assert block.dtype is None or block.dtype.itemsize == block.block_bytes


def test_map(tmp_path):
    tensors = filled([T("q", (256, 3), Q1_0), T("h", (5, 2), F16), T("n", (7,)), T("m", (3, 2))])
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf({}, tensors))
    with Map(read_header(path)) as weights:
        q = weights.tensor("q")
        assert q.shape == (3, 36) and q.dtype == np.uint8 and q.tobytes() == tensors[0].data
        assert not q.flags.writeable and not q.flags.owndata
        assert weights.address("q") == q.ctypes.data
        assert ctypes.string_at(weights.address("h"), 20) == tensors[1].data
        assert weights.f32("n").tobytes() == tensors[2].data and weights.f32("n").shape == (7,)
        assert weights.f32("m").shape == (2, 3)
        assert weights.nbytes == sum(len(t.data) for t in tensors)
        with pytest.raises(TypeError, match="h is f16"):
            weights.f32("h")
    assert q.tobytes() == tensors[0].data  # an array outlives the map


def test_map_of_a_cut_file(tmp_path):
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf({}, [ONE])[:-1])
    with pytest.raises(NeedMore):
        Map(read_header(path))


def test_map_with_an_odd_alignment(tmp_path):
    """An F32 tensor at an odd byte is copied, for NumPy and the kernels want aligned floats."""
    tensors = filled([T("b", (3,), 24, bytes(3)), T("n", (7,))])
    tensors[0] = T("b", (3,), 24, b"abc")
    path = tmp_path / "f.gguf"
    path.write_bytes(gguf({"general.alignment": ("u32", 1)}, tensors, align=1))
    with Map(read_header(path)) as weights:
        assert weights.f32("n").tobytes() == tensors[1].data and weights.f32("n").flags.aligned


# Time and memory


PEAK = """
import re, sys
from bankml.cli.main import main
code = main(sys.argv[2:])
with open("/proc/self/status") as status, open(sys.argv[1], "w") as peak:
    peak.write(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1])
sys.exit(code)
"""


def measured(path, tmp_path, command="guard"):
    """(exit code, stderr, seconds, peak resident MB) of a command; ru_maxrss would count the parent's pages too."""
    start = time.monotonic()
    arguments = [sys.executable, "-c", PEAK, str(tmp_path / "peak"), command, str(path)]
    done = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - start
    return done.returncode, done.stderr, seconds, int((tmp_path / "peak").read_text()) / 1024


def sparse(path, head: bytes, size: int):
    """`head`, and zeros up to `size` bytes, which take no disk."""
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


BIG = {
    "u8 array of 2^30": (array_of(0, 2**30), 2**31),
    "string array of 2^27": (array_of(8, 2**27), 2**31),
    "string value of 2^30": (claim(text("k") + struct.pack("<iQ", 8, 2**30)), 2**31),
    "keys of 64 KB": (claim(b"", n_kv=2**14), 2**31),
    "16384 tensors": (claim(n_kv=0, n_tensors=2**14), 2**31),
    "a string of 2^30 in an array": (array_of(8, 2, text("") + struct.pack("<Q", 2**30)), 2**31),
}


@pytest.mark.parametrize("name", BIG)
def test_hostile_sizes_cost_nothing(tmp_path, name):
    """A sparse file of 2 GB whose header claims as much as can be claimed: under a second and 150 MB."""
    sparse(tmp_path / "f.gguf", *BIG[name])
    code, _, seconds, megabytes = measured(tmp_path / "f.gguf", tmp_path)
    assert code in (2, 3) and seconds < 1 and megabytes < 150


def test_many_long_keys(tmp_path):
    keys = [(b"%05d" % i + bytes(65530), "u8", 0) for i in range(400)]
    (tmp_path / "f.gguf").write_bytes(gguf(keys))
    start = time.monotonic()
    with pytest.raises(Refused, match="the keys take more than"):
        read_header(tmp_path / "f.gguf")
    assert time.monotonic() - start < 1


def test_a_large_vocabulary_is_read_quickly(tmp_path):
    """151,669 tokens and as many merges: parsed in a fraction of a second, tokens decoded when asked for."""
    tokens = [f"token{i}" for i in range(151_669)]
    kv = {"tokenizer.ggml.tokens": ("arr[str]", tokens), "tokenizer.ggml.merges": ("arr[str]", tokens)}
    (tmp_path / "f.gguf").write_bytes(gguf(kv | {"tokenizer.ggml.token_type": ("arr[i32]", [1] * len(tokens))}))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        header = read_header(tmp_path / "f.gguf")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3
    assert header.kv["tokenizer.ggml.tokens"].all()[-1] == b"token151668"


def test_announcements_are_read_once():
    """The writer and the parser agree on a tensor's layout (a guard for the tests themselves)."""
    assert len(announce(ONE, 0)) == 8 + 1 + 4 + 8 + 4 + 8 and len(value("u8", 1)) == 5
