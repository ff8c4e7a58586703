"""Fuzz the tokenizer: any bytes, over real and odd vocabularies, against the live reference where there is one.

    python -m testing.fuzz_tokenizer --seconds 180 --seed 1

Ids are held equal to `llama_tokenize` of the shipped library (`bankml.oracle.library`; without it only what must hold
anyway is checked): ids in range, broken or valid text that comes back, a text that is cut or remembered alike.
Code points above U+10FFFF are left out: the reference ends its process there.
"""

import ctypes
import functools
import random
import sys

from bankml.errors import BankmlError
from bankml.oracle import library
from tests import vocab

ASCII = b"".join(bytes([i]) for i in range(128))
PIECES = (
    *(b"'s", b"'LL", b"'re", b" ", b"  ", b"\t", b"\n", b"\r\n", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\0"),
    *(
        text.encode() for text in [
            "\x85",
            "\xa0",
            "\u2028",
            "\u3000",
            "½٣Ⅷ",
            "é",
            "é",
            "漢字",
            "한국",
            "🎉👩\u200d👧",
            "ßİſ",
            "\U0010ffff",
        ]
    ),
    *(
        b"0",
        b"12345",
        b"3.14",
        b"hello",
        b" the",
        b"World",
        b"!!!",
        b"->",
        b"__init__",
        b'{"a": [1]}',
        b"\\n",
        b"=" * 40,
    ),
    *(b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\x80"),
    *(b"<|im_start|>", b"<|im_end|>", b"<|im_", b"|>", b"<think>", b"</think>", b"<|endoftext|>", b"<tool_call>"),
)  # fmt: skip
BEYOND = tuple(bytes([0xF4, second]) for second in range(0x90, 0xC0)) + tuple(bytes([i]) for i in range(0xF5, 0xF8))


def generate(rng: random.Random) -> bytes:
    """The number of a vocabulary, then a text of up to a few hundred bytes: pieces, characters and random bytes."""
    parts = [bytes([rng.randrange(len(VOCABULARIES))])]
    for _ in range(rng.choice((1, 2, 4, 8, 20))):
        kind = rng.randrange(6)
        if kind < 3:
            parts.append(rng.choice(PIECES) * rng.choice((1, 1, 1, 2, 3, 30)))
        elif kind == 3:
            parts.append(rng.randbytes(rng.randrange(1, 6)))
        elif kind == 4:
            parts.append(
                chr(rng.choice((rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))).encode()
            )
        else:
            parts.append(bytes(rng.choice(ASCII) for _ in range(rng.randrange(1, 12))))
    return b"".join(parts)


VOCABULARIES = {"smollm2": vocab.smollm2_gguf, "qwen3": vocab.qwen3_gguf}


@functools.cache
def both(name):
    """(our tokenizer, the reference's vocabulary or None)"""
    from bankml.oracle.sampler import ReferenceVocab
    from bankml.tokenizer import Tokenizer

    path = VOCABULARIES[name]()
    try:
        reference = ReferenceVocab(library.load(), path).pointer
    except (BankmlError, OSError):
        reference = None
    return Tokenizer.from_gguf(path), reference


def run(case: bytes):
    """Tokenize a text in every way and compare."""
    if len(case) < 2 or any(part in case[1:] for part in BEYOND):
        return
    name, text = list(VOCABULARIES)[case[0] % len(VOCABULARIES)], case[1:]
    tokenizer, reference = both(name)
    for parse in (True, False):
        ids = tokenizer.encode(text, parse)
        assert all(0 <= token < tokenizer.n_vocab for token in ids), "an id out of range"
        assert tokenizer.encode(text, parse) == ids, "another answer the second time"
        if name == "qwen3" and not _broken(text):  # SmolLM2's vocabulary lacks some bytes
            assert tokenizer.decode(ids, special=True) == text, "valid text does not come back"
        if reference is not None:
            want = reference_ids(reference, text, parse)
            assert ids == want, f"{ids} where the reference has {want}"


def _broken(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def reference_ids(reference, text: bytes, parse_special: bool) -> list[int]:
    """`llama_tokenize` without start and end tokens."""
    room = (ctypes.c_int32 * (len(text) + 8))()
    call = library.load().api.llama_tokenize
    count = call(reference, text, len(text), room, len(room), False, parse_special)
    return list(room[:count])


if __name__ == "__main__":
    from testing.fuzzing import command

    sys.exit(command("tokenizer", generate, run))
