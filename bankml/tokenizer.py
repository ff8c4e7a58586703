"""Byte-level BPE with the ids of llama.cpp b11192: `gpt2` vocabularies with the `qwen2` and `smollm` pre-tokenizers.

The order of things is the reference's (`llama_vocab::impl::tokenize`): special tokens are cut out of the raw bytes,
longest first; the text between them is decoded (a broken byte becomes U+FFFD), split by the pre-tokenizer, and
merged. Merging is done by Hugging Face's `tokenizers`; the reference's rules around it, for which that library has no
setting, are here. Nothing is normalised.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache

from bankml.errors import Refused, UsageError
from bankml.vocabulary import BYTE_CHARACTERS, CONTROL, RSTRIP, UNKNOWN, Vocabulary, read_merges

# Names that the reference gives the same pre-tokenizer.
PRE_TOKENIZERS = dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), "qwen2") | {
    "smollm": "smollm"
}

# Both are written for text whose characters above ASCII were replaced by one of their kind (see `_Kinds`). Digits
# stand alone in both; for `smollm` they also end the text before them, so white space in front of a digit is not
# shared out as it is in front of a letter.
SPLITTERS = {
    "qwen2": re.compile(
        r"'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^ \t-\rA-Za-z0-9]+[\r\n]*"
        r"|[ \t-\r]*[\r\n]+|[ \t-\r]+(?![^ \t-\r])|[ \t-\r]+"
    ),
    "smollm": re.compile(
        r"[0-9]|'(?:[stmd]|[rv]e|ll)| ?[A-Za-z]+| ?[^ \t-\rA-Za-z0-9]+|[ \t-\r]+(?![^ \t-\r0-9])|[ \t-\r]+"
    ),
}

WORDS_KEPT, LONG_WORD = 1 << 16, 64  # how many words are remembered, and which are too long for it


class _Kinds(dict):
    """For `str.translate`: characters above ASCII become `z` (letter), `0` (number), tab (white space) or `!`."""

    def __init__(self):
        from bankml import unicode_ranges

        self._ranges = [(0, 0, "")]
        for text, kind in ((unicode_ranges.LETTERS, "z"), (unicode_ranges.NUMBERS, "0"), (unicode_ranges.SPACES, "\t")):
            numbers = [int(word, 16) for word in text.split()]
            end = 0x80
            for skip, count in zip(numbers[::2], numbers[1::2], strict=True):
                self._ranges.append((end + skip, end + skip + count, kind))
                end += skip + count
        self._ranges.sort()

    def __missing__(self, point):
        if point < 0x80:
            raise LookupError  # leaves the character as it is
        _, end, kind = self._ranges[bisect_right(self._ranges, (point, 0x110000)) - 1]
        self[point] = result = kind if point < end else "!"
        return result


_kinds = cache(_Kinds)  # one table for all, made when a text first needs it


class Tokenizer:
    """Text to ids and back. `eog`: the ids that end a generation; `bos` and `eos`: None where the file names none."""

    def __init__(self, kv):
        model, pre = kv.get("tokenizer.ggml.model"), kv.get("tokenizer.ggml.pre")
        if model != "gpt2":
            raise Refused(f"tokenizer.ggml.model is {model!r}; bankml has 'gpt2' (byte-level BPE)")
        if pre not in PRE_TOKENIZERS:
            raise Refused(f"tokenizer.ggml.pre is {pre!r}; bankml has {', '.join(PRE_TOKENIZERS)}")
        self._splitter = SPLITTERS[PRE_TOKENIZERS[pre]]
        self.vocabulary = vocabulary = Vocabulary(kv)
        self.n_vocab = len(vocabulary.texts)
        self.eog, self.bos, self.eos = vocabulary.ends, vocabulary.bos, vocabulary.eos
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self._unspelled = {}  # id beyond the vocabulary -> ids of its bytes
        self._bpe = self._build(read_merges(kv))
        self._words = {}

    @classmethod
    def from_gguf(cls, source) -> "Tokenizer":
        """From a GGUF's path or its `Header`. Raises Refused where the vocabulary is of another kind, or broken."""
        if not hasattr(source, "kv"):
            from bankml.gguf import read_header

            source = read_header(source)
        return cls(source.kv)

    def _build(self, merges):
        """The merging model. Texts that a merge makes but the vocabulary lacks get ids beyond it; see `_spell`."""
        from tokenizers.models import BPE

        vocab = self.vocabulary.ids
        if all(character in vocab for character in BYTE_CHARACTERS):
            try:
                return BPE(vocab=vocab, merges=merges)
            except Exception:  # a plain Exception for a merge of no tokens, a UnicodeError for broken UTF-8
                pass
        vocab = {text: i for text, i in vocab.items() if _is_valid(text)}
        merges = [pair for pair in merges if _is_valid("".join(pair))]
        for text in [*BYTE_CHARACTERS, *(part for left, right in merges for part in (left, right, left + right))]:
            if text not in vocab:
                vocab[text] = self.n_vocab + len(self._unspelled)
                self._unspelled[vocab[text]] = self._spell(text)
        return BPE(vocab=vocab, merges=merges)

    def _spell(self, text: str) -> list[int]:
        """What the reference makes of a merged text that is no token: its bytes' tokens, as far as there are any."""
        ids = self.vocabulary.ids
        found = (ids.get(bytes([byte]).decode("utf-8", "surrogateescape")) for byte in text.encode())
        return [token for token in found if token is not None]

    def encode(self, text: str | bytes, parse_special: bool = True, add_special: bool = False) -> list[int]:
        """The ids of a text. `parse_special`: control tokens in it count as such; user-defined ones always do.

        `add_special` puts the file's start and end tokens around it where the file asks for them. Bytes may be
        anything.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        ids = [self.bos] if add_special and self.add_bos else []
        for fragment in self._fragments(raw, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                self._encode_plain(fragment, ids)
        if add_special and self.add_eos:
            ids.append(self.eos)
        return ids

    def _fragments(self, raw: bytes, parse_special: bool) -> list[int | bytes]:
        """The text cut at its special tokens: ids, and the raw text between them."""
        fragments = [raw] if raw else []
        for text, token in self.vocabulary.specials:
            attribute = self.vocabulary.attributes[token]
            if text in raw and (parse_special or not attribute & (CONTROL | UNKNOWN)):
                cut = []
                for fragment in fragments:
                    cut += [fragment] if isinstance(fragment, int) else _cut(fragment, text, token, attribute & RSTRIP)
                fragments = cut
        return fragments

    def _encode_plain(self, raw: bytes, ids: list[int]):
        """Append the ids of text without special tokens."""
        text = raw.decode("utf-8", "bankml.reference")
        kinds = text if text.isascii() else text.translate(_kinds())
        words = self._words
        for match in self._splitter.finditer(kinds):
            word = text[match.start() : match.end()]
            found = words.get(word)
            if found is None:
                found = self._merge(word)
                if len(word) < LONG_WORD:
                    if len(words) >= WORDS_KEPT:
                        words.clear()
                    words[word] = found
            ids += found

    def _merge(self, word: str) -> list[int]:
        """The ids of one word of the pre-tokenizer."""
        spelled = word.encode("utf-8", "surrogatepass").decode("latin-1").translate(BYTE_CHARACTERS)
        ids = [token.id for token in self._bpe.tokenize(spelled)]
        if self._unspelled:
            return [part for token in ids for part in self._unspelled.get(token, (token,))]
        return ids

    def decode(self, ids: Iterable[int], special: bool = False) -> bytes:
        """The bytes of these tokens, one after the other; control tokens are shown only with `special`."""
        return b"".join(self.piece(token, special) for token in ids)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token (`llama_token_to_piece`). Raises UsageError for an id that is none."""
        if not 0 <= token < self.n_vocab:
            raise UsageError(f"token {token} is not in the vocabulary of {self.n_vocab}")
        return self.vocabulary.piece(token, special)


def _is_valid(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character < "\ue000" for character in text)


def _cut(raw: bytes, text: bytes, token: int, strip_right: int) -> Iterator[int | bytes]:
    """One piece of raw text, cut at every occurrence of a special token's text."""
    first, *rest = raw.split(text)
    if first:
        yield first
    for piece in rest:
        yield token
        kept = piece.lstrip() if strip_right else piece
        if kept:
            yield kept
