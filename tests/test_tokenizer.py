"""Ids, pieces and end sets against recordings of the shipped library (testing/record_tokens.py), and `tokenize`."""

import base64
import gzip
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bankml.errors import Refused, UsageError
from bankml.tokenizer import Tokenizer, _kinds
from tests import vocab

GOLDEN = Path(__file__).parent / "golden"


def golden(name):
    return json.loads(gzip.decompress((GOLDEN / name).read_bytes()))


VARIANTS = golden("tokens_variants.json.gz")["variants"]


@pytest.fixture(scope="session")
def files():
    """The GGUF files of both real vocabularies."""
    return {"qwen3": vocab.qwen3_gguf(), "smollm2": vocab.smollm2_gguf()}


@pytest.fixture(scope="session")
def tokenizers(files):
    return {name: Tokenizer.from_gguf(path) for name, path in files.items()}


@pytest.fixture(scope="session", params=["qwen3", "smollm2"])
def recorded(request, tokenizers):
    """(tokenizer, what the library makes of the same file)"""
    return tokenizers[request.param], golden(f"tokens_{request.param}.json.gz")


def small(tmp_path, kv) -> Tokenizer:
    return Tokenizer.from_gguf(vocab.write_gguf(tmp_path / "small.gguf", kv))


class TestRecorded:
    def test_ids(self, recorded):
        tokenizer, record = recorded
        assert len(record["cases"]) == 2000
        wrong = []
        for text, parsed, plain in record["cases"]:
            raw = base64.b85decode(text)
            if tokenizer.encode(raw) != parsed or tokenizer.encode(raw, parse_special=False) != plain:
                wrong.append(raw)
        assert wrong == []

    def test_ends(self, recorded):
        tokenizer, record = recorded
        assert sorted(tokenizer.eog) == record["eog"]
        assert tokenizer.n_vocab == record["n_tokens"]
        assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (record["bos"], record["eos"], record["add_bos"])

    def test_pieces(self, recorded):
        tokenizer, record = recorded
        for special, digest in zip((True, False), record["pieces_sha256"], strict=True):
            pieces = b"".join(tokenizer.piece(i, special) + b"\n" for i in range(tokenizer.n_vocab))
            assert vocab.digest(pieces) == digest

    def test_valid_text_survives(self, recorded):
        tokenizer, record = recorded
        for text, parsed, plain in record["cases"]:
            raw = base64.b85decode(text)
            try:
                raw.decode()
            except UnicodeDecodeError:
                continue
            assert tokenizer.decode(parsed, special=True) == raw
            assert tokenizer.decode(plain, special=True) == raw


def test_every_code_point():
    """Letters, numbers and white space are those of the library, whatever Unicode this Python has."""
    runs = golden("tokens_kinds.json.gz")["runs"]
    table, names = _kinds(), {"z": "L", "0": "N", "\t": "Z", "!": "O"}
    for (start, kind), (end, _) in zip(runs, [*runs[1:], [0x110000, ""]], strict=True):
        for point in range(max(start, 0x80), end):
            assert names[table[point]] == kind, hex(point)


class TestVariants:
    """One rule of the reference's loader each; see testing/record_tokens.py."""

    @pytest.mark.parametrize("name", VARIANTS)
    def test_same(self, tmp_path, name):
        record = VARIANTS[name]
        tokenizer = small(tmp_path, record["kv"])
        assert sorted(tokenizer.eog) == record["eog"]
        for special, pieces in zip((True, False), record["pieces"], strict=True):
            assert [tokenizer.piece(i, special).hex() for i in range(tokenizer.n_vocab)] == pieces
        for text, *want in record["cases"]:
            assert [tokenizer.encode(text, parse, add) for parse in (True, False) for add in (False, True)] == want, (
                text
            )

    def test_no_start_token_is_invented(self, tmp_path):
        """The reference's default start token is 11, a comma in Qwen's vocabulary; it must never appear."""
        kv = VARIANTS["no end token"]["kv"] | {"tokenizer.ggml.add_bos_token": True}
        tokenizer = small(tmp_path, kv)
        assert tokenizer.bos is None
        assert tokenizer.encode("hello", add_special=True) == tokenizer.encode("hello")


class TestUserReports:
    """shared cases F1 and F4: ids of the reference."""

    @pytest.mark.parametrize(
        ("text", "qwen", "smol"),
        [
            ("12345 67", [16, 17, 18, 19, 20, 220, 21, 22], [33, 34, 35, 36, 37, 216, 38, 39]),
            ("if (x) -> y", [333, 320, 87, 8, 1464, 379], [342, 365, 104, 25, 4722, 329]),
            ("3,141.59", [18, 11, 16, 19, 16, 13, 20, 24], [35, 28, 33, 36, 33, 30, 37, 41]),
            ("hi   \n  ", [6023, 5872, 256], [6004, 333, 11181]),
            ("a" + " " * 20 + "b", [64, 503, 293], [81, 42185, 278]),
            ("<|im_start|>user\nhi<|im_end|>", [151644, 872, 198, 6023, 151645], [1, 4093, 198, 6004, 2]),
            ("a <|im_end|> b", [64, 220, 151645, 293], [81, 216, 2, 278]),
        ],
    )
    def test_ids(self, tokenizers, text, qwen, smol):
        assert tokenizers["qwen3"].encode(text) == qwen
        assert tokenizers["smollm2"].encode(text) == smol
        assert tokenizers["qwen3"].encode(text, add_special=True) == qwen  # neither file asks for a start token

    def test_control_tokens_as_text(self, tokenizers):
        ids = tokenizers["qwen3"].encode("<|im_start|>user\nhi<|im_end|>", parse_special=False)
        assert ids == [27, 91, 318, 4906, 91, 29, 872, 198, 6023, 27, 91, 318, 6213, 91, 29]

    def test_user_defined_always_parsed(self, tokenizers):
        for parse_special in (True, False):
            assert tokenizers["qwen3"].encode("<think>", parse_special) == [151667]


class TestHostileText:
    @pytest.mark.parametrize("unit", ["a", " ", "\n", "1", "!", "é", "漢", "\u0301", "' ", " \n", "<|im_end|>"])
    def test_long_runs(self, recorded, unit):
        tokenizer, _ = recorded
        raw = unit.encode() * (500_000 // len(unit.encode()))
        start = time.perf_counter()
        assert tokenizer.decode(tokenizer.encode(raw), special=True) == raw
        assert time.perf_counter() - start < 20

    @pytest.mark.parametrize("raw", [b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf"])
    def test_beyond_unicode(self, recorded, raw):
        """The reference ends its process here; each byte is taken as broken, as other broken bytes are."""
        tokenizer, _ = recorded
        assert tokenizer.encode(raw) == tokenizer.encode("\ufffd" * 4)

    def test_threads(self, tokenizers):
        texts = ["some words " * n + "é漢" * n for n in range(40)]
        want = [tokenizers["smollm2"].encode(text) for text in texts]
        fresh, got = Tokenizer.from_gguf(vocab.smollm2_gguf()), {}

        def work(name):
            got[name] = [fresh.encode(text) for text in texts]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert all(got[n] == want for n in range(4))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
            ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is None"),
            ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre is 'llama-bpe'"),
            ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is None"),
            ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
            ({"tokenizer.ggml.tokens": "a"}, "not an array of strings"),
            ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "tokens 0 and 2 have the same text"),
            ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
            ({"tokenizer.ggml.token_type": [1, 2]}, "not an i32 for each"),
            ({"tokenizer.ggml.token_type": 1}, "not an i32 for each"),
            ({"tokenizer.ggml.bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is no token id"),
            ({"tokenizer.ggml.add_bos_token": 1}, "tokenizer.ggml.add_bos_token is not a bool"),
            ({"general.name": "phi-3"}, "Phi-3"),
        ],
    )
    def test_refused(self, tmp_path, changes, reason):
        kv = {key: value for key, value in (VARIANTS["plain"]["kv"] | changes).items() if value is not None}
        with pytest.raises(Refused, match=reason):
            small(tmp_path, kv)

    def test_unknown_id(self, tokenizers):
        for token in (-1, 151669):
            with pytest.raises(UsageError, match="not in the vocabulary"):
                tokenizers["qwen3"].decode([token])


def command(*args, stdin=b""):
    return subprocess.run(
        [sys.executable, "-m", "bankml", *map(str, args)], input=stdin, capture_output=True, check=False
    )


class TestCommand:
    def test_bytes_of_stdin(self, files, tokenizers):
        raw = b"a\0b\xff <|im_end|>\n"
        for flags, parse in (((), True), (("--no-special",), False)):
            done = command("tokenize", files["smollm2"], *flags, stdin=raw)
            assert (done.returncode, done.stderr) == (0, b"")
            assert json.loads(done.stdout) == {"tokens": tokenizers["smollm2"].encode(raw, parse)}

    def test_failures_are_one_line(self, tmp_path):
        other = vocab.write_gguf(tmp_path / "other.gguf", VARIANTS["plain"]["kv"] | {"tokenizer.ggml.pre": "gpt-2"})
        for path, code in ((tmp_path / "none.gguf", 1), (other, 2)):
            done = command("tokenize", path)
            assert done.returncode == code
            assert done.stdout == b""
            assert len(done.stderr.splitlines()) == 1
            assert b"Traceback" not in done.stderr

    @pytest.mark.parametrize(("name", "seconds"), [("smollm2", 0.5), ("qwen3", 0.8)])
    def test_starts_fast(self, files, name, seconds):
        """Processor time of the best of five: a busy machine must not fail this."""

        def run():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert command("tokenize", files[name], stdin="é".encode()).returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        assert min(run() for _ in range(5)) < seconds

    def test_loads_little(self, files):
        code = (
            "import sys; from bankml.cli.main import main; main(sys.argv[1:]); "
            "heavy = {'numba', 'llvmlite', 'pyopencl', 'rich', 'jinja2'}; "
            "print(*sorted({name.split('.')[0] for name in sys.modules} & heavy))"
        )
        command = [sys.executable, "-c", code, "tokenize", files["smollm2"]]
        done = subprocess.run(command, input=b"hi", capture_output=True, check=True)
        assert done.stdout.decode().splitlines() == ['{"tokens": [6004]}', ""]
