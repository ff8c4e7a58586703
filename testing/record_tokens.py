# ruff: noqa: E501, SIM905 (tables of texts)
"""Record what the shipped library makes of 2,000 strings with each of two vocabularies, and of every code point.

    BANKML_REFERENCE=<folder of libllama> python -m testing.record_tokens

Writes tests/golden/tokens_{smollm2,qwen3,kinds,variants}.json.gz. Texts are seeded, so a second run writes the same files. No bankml code is used.
"""

import base64
import gzip
import json
import random
import tempfile
from pathlib import Path

from testing.reference_vocab import ReferenceVocab, library_stamp
from tests import vocab

ROOT = Path(__file__).resolve().parents[1]
COUNT = 2000
GOLDEN = ROOT / "tests" / "golden"

# Ranges of code points: Latin, its supplements, IPA, combining marks, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Bengali, Thai, Tibetan,
# Georgian, Hangul, Ethiopic, phonetics, punctuation, super- and subscripts, currency, letter-likes, number forms, arrows, mathematics,
# boxes, kana, CJK, Yi, private use, presentation forms, fullwidth, Gothic, cuneiform, hieroglyphs, mathematical letters, emoji, tags, the end.
RANGES = (
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x900, 0x97F), (0x980, 0x9FF), (0xE00, 0xE7F), (0xF00, 0xFFF), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F),
    (0x1D00, 0x1DFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20CF), (0x2100, 0x214F), (0x2150, 0x218F), (0x2190, 0x21FF),
    (0x2200, 0x22FF), (0x2500, 0x257F), (0x3000, 0x30FF), (0x3400, 0x9FFF), (0xA000, 0xA4CF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF),
    (0xFB00, 0xFDFF), (0xFF00, 0xFFEF), (0x10330, 0x1034F), (0x12000, 0x123FF), (0x13000, 0x1342F), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF), (0xE0000, 0xE007F), (0x10FFF0, 0x10FFFF),
)  # fmt: skip

# Bytes that are no UTF-8 by the standard. The library ends its process at code points above U+10FFFF (F4 90 .., F5 to F7), so they are not here.
BROKEN = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe0\x80\xaf", b"\xe2\x82", b"\xe2\x28\xa1", b"\xed\xa0\x80", b"\xed\xbf\xbf",
    b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf0\x80\x80\x80", b"\xf0\x28\x8c\xbc", b"\xf8\x88\x80\x80\x80", b"\xfc", b"\xfe", b"\xff",
]  # fmt: skip

SPECIALS = {  # of each vocabulary, and texts that only look like it
    "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<empty_output>", "<jupyter_code>"],
    "qwen3": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "</s>", "<|file_sep|>"],
}  # fmt: skip
WORDS = (
    "the of and to in is that for hello world def return import self Hello WORLD iPhone don't I'll we've they're it's 'S 'LL 'Ve ' '' café naïve "
    "über straße ſtraße İstanbul 北京 東京 日本語 한국어 Привет мир مرحبا שלום नमस्ते สวัสดี ქართული 🎉 👩‍👩‍👧 🇩🇪 é é ½ ² Ⅷ ٣٤ 一二 ０１２ 1 12 123 1234567890 3.14 1,000 "
    "1e-5 0x1F -- ... != == -> => :: && || ++ /* */ // # $ % @ ( ) [ ] { } < > \\ \\n ` ~ ^ | _ __init__ snake_case camelCase http://a.b/c?d=e&f=g"
).split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\ufeff"]  # fmt: skip


def edge_cases(specials) -> list[bytes]:
    """Texts that were chosen, not drawn."""
    texts = [
        "", " ", "  ", "\n", "\0", "a\0b", "\0\0\0", "12345 67", "if (x) -> y", "3,141.59", "hi   \n  ", "a" + " " * 20 + "b", "a <|im_end|> b",
        "<|im_start|>user\nhi<|im_end|>", "<|im_start|><|im_start|>", "<|im_start", "|im_start|>", "<<|im_end|>>", "<|im_<|im_end|>end|>",
        "a" * 5000, "ab" * 3000, " " * 3000, "\n" * 1000, " \n" * 700, "1" * 2000, "!" * 2000, "é" * 1500, "漢" * 1200, "🎉" * 500, "'" * 300,
        "'s's'S 'll'LL x's", "don't DON'T", "   x", "x   ", "\t\tx", " \t x", "x \n\n y", "\r\n\r\n", "x\r", "a1b2c3", " 1", "  1", "1 ", "٣٤٥ ½", "e\u0301",
        "\u0301a", " \u0301", "a\u200db", "\U0001f468\u200d\U0001f469", "\ufeffhi", "\u2028\u2029", "\x85x", "\xa0x", "\u3000x \u3000",
        "_" * 40 + "x", "x" + "=" * 80, "{\"a\": [1, 2.5e10, null]}", "\\u00e9", "<think>\n\n</think>\n\n", "<tool_call>{}</tool_call>", "</s>", "<s>",
    ]  # fmt: skip
    texts += [" ".join(pair) for pair in zip(specials, reversed(specials), strict=True)] + ["".join(specials)]
    return (
        [text.encode() for text in texts] + BROKEN + [b"a" + b + b"b " + b for b in BROKEN] + [bytes(range(256))[:0xF4]]
    )


def draw(rng, specials) -> bytes:
    """One random text: words, white space, characters of one or two ranges, special tokens, broken bytes."""
    ranges = rng.sample(RANGES, 2)
    kinds = rng.choices("wwwscccxb", k=4)
    parts = []
    for _ in range(rng.choice((1, 3, 8, 8, 20, 20, 40))):
        kind = rng.choice(kinds)
        if kind == "w":
            parts.append(rng.choice(WORDS).encode() + b" " * rng.randint(0, 1))
        elif kind == "s":
            parts.append(rng.choice(SPACES).encode() * rng.choice((1, 1, 1, 2, 5)))
        elif kind == "c":
            low, high = rng.choice(ranges)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))).encode())
        elif kind == "x":
            text = rng.choice(specials).encode()
            parts.append(text if rng.random() < 0.8 else text[: rng.randrange(len(text))])
        else:
            parts.append(rng.choice([*BROKEN, b"\0"]))
    return b"".join(parts)


def texts_for(seed, specials) -> list[bytes]:
    rng = random.Random(seed)
    texts = list(dict.fromkeys(edge_cases(specials)))
    while len(texts) < COUNT:
        text = draw(rng, specials)
        if text not in texts:
            texts.append(text)
    return texts


def save(name, content):
    """Write compact JSON, compressed, with nothing in it that changes from run to run."""
    data = json.dumps(content, separators=(",", ":")).encode()
    (GOLDEN / name).write_bytes(gzip.compress(data, 9, mtime=0))
    print(name, len(content.get("cases", ())), (GOLDEN / name).stat().st_size)


def record(name, model, specials, seed):
    """Ids with control tokens parsed and not, pieces of all tokens, the end set."""
    reference = ReferenceVocab(model)
    cases = [
        [base64.b85encode(text).decode(), reference.tokenize(text), reference.tokenize(text, parse_special=False)]
        for text in texts_for(seed, specials)
    ]
    pieces = {
        special: b"".join(reference.piece(i, special) + b"\n" for i in range(reference.n_tokens))
        for special in (True, False)
    }
    save(
        f"tokens_{name}.json.gz",
        {
            "reference": library_stamp(),
            "input": {"file": Path(model).name, "sha256": vocab.sha256(model)},
            "n_tokens": reference.n_tokens,
            "eog": reference.eog(),
            **reference.ends(),
            "pieces_sha256": [vocab.digest(pieces[special]) for special in (True, False)],
            "cases": cases,
        },
    )


def record_kinds():
    """Write the kinds of all code points."""
    save("tokens_kinds.json.gz", {"reference": library_stamp(), "runs": kind_runs()})


def kind_runs() -> list:
    """Letter, number, white space or none of these: every code point, as the library's pre-tokenizer splits at it.

    Returns [[first code point, kind], ...] of runs of one kind.

    A vocabulary of bytes and of merges with `a`, `!` and a tab in front shows where a split is: a merge over it never happens.
    """
    characters = vocab.byte_characters()
    marks = [characters[ord(mark)] for mark in "a!\t"]
    tokens = characters + [mark + character for mark in marks for character in characters]
    merges = [f"{mark} {character}" for mark in marks for character in characters]
    kinds = {(1, 1, 1): "L", (0, 0, 0): "N", (0, 0, 1): "Z", (0, 1, 1): "Z", (0, 1, 0): "O"}  # joined with a, !, tab
    runs, before = [], ""
    with tempfile.TemporaryDirectory() as folder:
        path = vocab.write_gguf(
            Path(folder) / "kinds.gguf",
            vocab.vocab_kv(tokens, [vocab.NORMAL] * len(tokens), merges, "qwen2", eos=0, bos=0),
        )
        reference = ReferenceVocab(path)
        for point in range(0x110000):
            raw = chr(point).encode("utf-8", "surrogatepass")
            kind = kinds[tuple(len(reference.tokenize(mark + raw)) == len(raw) for mark in (b"a", b"!", b"\t"))]
            if kind != before:
                runs.append([point, kind])
                before = kind
    return runs


def small(tokens=(), merges=(), types=None, pre="qwen2", bytes_left_out="", **keys) -> dict:
    """Keys of a vocabulary of the 256 bytes, less some, and these tokens; `types` says the type of some by text."""
    texts = [c for c in vocab.byte_characters() if c not in bytes_left_out] + list(tokens)
    kinds = [(types or {}).get(text, vocab.NORMAL) for text in texts]
    given = {key.replace("__", "."): value for key, value in keys.items() if key not in ("eos", "bos", "add_bos")}
    ends = {key: keys[key] for key in ("eos", "bos", "add_bos") if key in keys}
    return vocab.vocab_kv(texts, kinds, merges, pre, **({"eos": 0, "bos": 1} | ends)) | given


CONTROL, USER, UNKNOWN, UNUSED, BYTE = vocab.CONTROL, vocab.USER_DEFINED, vocab.UNKNOWN, vocab.UNUSED, vocab.BYTE
HELLO = {
    "tokens": ["he", "ll", "hell", "hello", "Ġhello", "Ġ1"],
    "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ 1"],
}

# Vocabularies that show one rule of the loader each, named by it.
VARIANTS = {
    "plain": small(**HELLO),
    "smollm": small(**HELLO, pre="smollm"),
    **{pre: small(**HELLO, pre=pre) for pre in ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez")},
    "bytes without tokens": small(**HELLO, bytes_left_out="xĀé"),
    "merges into no token": small(["hello"], ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw Ŀ"]),
    "equal merges": small(["he", "el"], ["e l", "h e", "e l", "h e"]),
    "odd merges": small(["he", "ll"], ["he", "h  e", "l l", " l l", ""]),
    "merges of no byte": small(["he", "Āfoo"], ["Āf oo", "h e"]),
    "no token types": {k: v for k, v in small(**HELLO).items() if k != "tokenizer.ggml.token_type"},
    "all types": small(
        ["<c>", "<u>", "<?>", "<n>", "<0x41>", "<unused1>", "<c><u>", "héllo", "Ġ你"],
        types={"<c>": CONTROL, "<u>": USER, "<?>": UNKNOWN, "<n>": UNUSED, "<0x41>": BYTE, "<unused1>": CONTROL, "<c><u>": USER},
    ),
    "odd types": small(["<a>", "<b>"], types={"<a>": 77, "<b>": -1}),
    "empty token": small(["", "<c>"], types={"<c>": CONTROL, "": CONTROL}),
    "added start and end": small(["<c>"], types={"<c>": CONTROL}, eos=256, bos=256, add_bos=True, tokenizer__ggml__add_eos_token=True),
    "no end token": small(**HELLO, eos=None, bos=None),
    "end token out of range": small(**HELLO, eos=99999),
    "ends by text": small(["<|eot_id|>", "</s>", "[EOS]", "<turn|>", "<eos>", "[e~[", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|eom_id|>"]),
    "eot and eom by key": small(["<x>", "<y>"], tokenizer__ggml__eot_token_id=256, tokenizer__ggml__eom_token_id=257),
    "fill in the middle": small(["<|fim_prefix|>", "<SUF>", "<fim-middle>", "<PAD>", "<reponame>", "<|file_sep|>"]),
    "fill in the middle by key": small(["<p>", "<r>", "<|fim_pad|>"], tokenizer__ggml__fim_pad_token_id=256, tokenizer__ggml__fim_rep_token_id=257),
    "harmony": small(["<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|start|>"], types=dict.fromkeys(["<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|start|>"], CONTROL)),
    "solar": small(["<|end|>", "<|flush|>", "<|calls|>"]),
    "end alone": small(["<|end|>", "<|return|>"]),
    "tool response": small(["</s>", "<|tool_response>"]),
    "phi-3 by name": small(["</s>", "<unk>", "<s>", "<|endoftext|>", "<|user|>"], types={"<|user|>": CONTROL}, general__name="My Phi-3 copy"),
}  # fmt: skip
SHORT = [
    "hello hello", "hell he ell  1 12", "x\u0000\u00e9y\u0101 xx", " w\u00a1 w\u00bf", "hehellel", "<c><u><?><n><0x41><unused1><c><u>A héllo 你", "<a>  <b>", "[EMPTY_256]<c>",
    "a</s> b<|eot_id|>\n c<|endoftext|> d<|user|> \n e<s> f", "<|end|><|return|><|call|><|channel|>", "<|fim_prefix|><SUF><fim-middle><PAD><reponame>", "",
]  # fmt: skip


def record_variants():
    """Write what `variants` gives."""
    save("tokens_variants.json.gz", {"reference": library_stamp(), "variants": variants()})


def variants() -> dict:
    """Small vocabularies: their keys, and what the library makes of short texts, of all pieces, of the end set."""
    out = {}
    for name, kv in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            reference = ReferenceVocab(vocab.write_gguf(Path(folder) / "variant.gguf", kv))
            out[name] = {
                "kv": kv,
                "eog": reference.eog(),
                **reference.ends(),
                "pieces": [
                    [reference.piece(i, special).hex() for i in range(reference.n_tokens)] for special in (True, False)
                ],
                "cases": [
                    [
                        text,
                        *(
                            reference.tokenize(text.encode(), parse, add)
                            for parse in (True, False)
                            for add in (False, True)
                        ),
                    ]
                    for text in SHORT
                ],
            }
    return out


if __name__ == "__main__":
    record_variants()
    record("smollm2", vocab.smollm2_gguf(), SPECIALS["smollm2"], 1)
    record("qwen3", vocab.qwen3_gguf(), SPECIALS["qwen3"], 2)
    record_kinds()
