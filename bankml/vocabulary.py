"""The tokens of a `gpt2` vocabulary as the reference holds them: attributes, the end set, special tokens, pieces.

Follows `llama_vocab::impl::load` of llama.cpp b11192.
"""

import codecs
import re
from collections.abc import Iterator

from bankml.errors import Refused

# Attributes of a token, and the attribute that each token type of a file means.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, RSTRIP = 1, 2, 4, 8, 16, 32, 64
TYPES = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}

# Texts by which the reference recognises tokens that a file does not name. A text that is found becomes a control
# token.
END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
# Fill-in-the-middle tokens: (keys that name one, texts that stand for it, whether it ends a generation).
FIM = (
    (
        ("fim_pre_token_id", "prefix_token_id"),
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
        False,
    ),
    (
        ("fim_suf_token_id", "suffix_token_id"),
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
        False,
    ),
    (
        ("fim_mid_token_id", "middle_token_id"),
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        False,
    ),
    (("fim_pad_token_id",), "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]", True),
    (("fim_rep_token_id",), "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>", True),
    (("fim_sep_token_id",), "<|file_sep|>", True),
)
ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

DEFAULT_END = 11  # the reference's end token where a file names none


def _byte_characters() -> str:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    return "".join(chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def _one_broken(error: UnicodeDecodeError):
    """Decode what Python calls broken as the reference does: surrogates and overlong forms count, else U+FFFD."""
    data, at = error.object, error.start
    lead = data[at]
    size = 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF8 else 0
    tail = data[at + 1 : at + size]
    if size and len(tail) == size - 1 and all(byte & 0xC0 == 0x80 for byte in tail):
        point = lead & (0x7F >> size)
        for byte in tail:
            point = point << 6 | byte & 0x3F
        if point < 0x110000:  # above it the reference throws out of its own call
            return chr(point), at + size
    return "\ufffd", at + 1


codecs.register_error("bankml.reference", _one_broken)


class Vocabulary:
    """The tokens of a file, and what the reference makes of them when it loads it.

    `texts` are the tokens as stored, `ids` finds them by text, `attributes` holds what `TYPES` says of each plus what
    its text tells. `bos` and `eos` are None where the file names none. Raises Refused where the reference would not
    load the file.
    """

    def __init__(self, kv):
        self.texts = _strings(kv, "tokenizer.ggml.tokens")
        if "" in self.texts:
            self.texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(self.texts)]
        self.ids = dict(zip(self.texts, range(len(self.texts)), strict=True))
        if len(self.ids) != len(self.texts):
            twice = next(i for i, text in enumerate(self.texts) if self.ids[text] != i)
            raise Refused(f"tokenizer.ggml.tokens: tokens {twice} and {self.ids[self.texts[twice]]} have the same text")
        self.attributes = _attributes(kv, len(self.texts))
        self.bos = self._named(kv, "bos_token_id")
        self.eos = self._named(kv, "eos_token_id")
        self.add_bos = _flag(kv, "add_bos_token") and self.bos is not None
        self.add_eos = _flag(kv, "add_eos_token") and self.eos is not None
        self.ends = self._ends(kv)
        self.specials = self._specials(kv)

    def _named(self, kv, *names) -> int | None:
        """The token that a key `tokenizer.ggml.<name>` names; of several, the last that is there."""
        found = None
        for name in names:
            value = kv.get(f"tokenizer.ggml.{name}")
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise Refused(f"tokenizer.ggml.{name} is no token id: {value!r}")
            if 0 <= value < len(self.texts):
                found = value
        return found

    def _ends(self, kv) -> frozenset[int]:
        """The tokens that end a generation (`special_eog_ids`), and the attributes that follow from their texts.

        Of several texts that could be one fill-in-the-middle token the reference takes the one its hash table meets
        first; here it is the first of the list.
        """
        ends = set()
        for keys, texts, is_end in FIM:
            token = self._named(kv, *keys)
            if token is None:
                token = next((self.ids[text] for text in texts.split() if text in self.ids), None)
                if token is not None:
                    self.attributes[token] |= CONTROL
            if is_end and token is not None:
                ends.add(token)
        for token in [self.ids[text] for text in END_TEXTS if text in self.ids]:
            ends.add(token)
            self.attributes[token] |= CONTROL
        for token in [self.ids[text] for text in ALWAYS_SHOWN if text in self.ids]:
            self.attributes[token] = USER_DEFINED
        eos = self.eos if self.eos is not None else DEFAULT_END if len(self.texts) > DEFAULT_END else None
        ends.update({eos, self._named(kv, "eot_token_id"), self._named(kv, "eom_token_id")} - {None})
        present = {self.texts[token] for token in ends}
        if "<|end|>" in present and present & {"<|call|>", "<|calls|>"} and present & {"<|return|>", "<|flush|>"}:
            ends.remove(self.ids["<|end|>"])
            self.attributes[self.ids["<|end|>"]] = USER_DEFINED
        if {"<|tool_response>", "</s>"} <= present:
            ends.remove(self.ids["</s>"])
            self.attributes[self.ids["</s>"]] = NORMAL
        return frozenset(ends)

    def _specials(self, kv) -> list[tuple[bytes, int]]:
        """(text, token) of the tokens that are cut out of a text before anything else, in the order they are tried."""
        marked = [i for i, attribute in enumerate(self.attributes) if attribute & (CONTROL | USER_DEFINED | UNKNOWN)]
        name = str(kv.get("general.name", "")).lower()
        if "phi-3" in name or "phi3" in name:
            self._strip_right(marked)
        specials = [(self.texts[i].encode("utf-8", "surrogateescape"), i) for i in marked]
        return sorted(specials, key=lambda special: -len(special[0]))

    def _strip_right(self, marked):
        """Models with Phi-3 in their name eat the white space after a special token."""
        plain = ("<unk>", "<s>", "<|endoftext|>")
        if missing := [text for text in ("</s>", *plain) if text not in self.ids]:
            raise Refused(f"general.name says Phi-3, whose token {missing[0]} is missing")
        for token in {*marked, self.ids["</s>"]} - {self.ids[text] for text in plain}:
            self.attributes[token] |= RSTRIP

    def piece(self, token: int, special: bool) -> bytes:
        """The bytes of one token (`llama_token_to_piece`); of control tokens only with `special`."""
        text, attribute = self.texts[token], self.attributes[token]
        if attribute & (CONTROL | UNKNOWN | USER_DEFINED):
            return text.encode("utf-8", "surrogateescape") if special or not attribute & (CONTROL | UNKNOWN) else b""
        if attribute & NORMAL:
            return b"".join(shown(text))
        if attribute & BYTE:
            digits = re.match("[0-9a-fA-F]{0,2}", text[3:5])[0]
            return bytes([int(digits or "0", 16)])
        return b""


def _strings(kv, key) -> list[str]:
    """A string array as text; broken UTF-8 is kept with `surrogateescape`, a zero byte ends a string as in C."""
    if key not in kv:
        raise Refused(f"{key} is missing")
    if kv.kind(key) != "arr[str]":
        raise Refused(f"{key} is {kv.kind(key)}, not an array of strings")
    strings = kv[key].all()
    try:
        texts = [raw.decode() for raw in strings]
    except UnicodeDecodeError:
        texts = [raw.decode("utf-8", "surrogateescape") for raw in strings]
    if "\0" in "".join(texts):
        texts = [text.partition("\0")[0] for text in texts]
    return texts


def _attributes(kv, count) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in kv:
        return [NORMAL] * count
    if kv.kind(key) != "arr[i32]" or len(kv[key]) < count:
        raise Refused(f"{key} is {kv.kind(key)}, not an i32 for each of {count} tokens")
    return [TYPES.get(kind, 0) for kind in kv[key][:count].tolist()]


def _flag(kv, name) -> bool:
    value = kv.get(f"tokenizer.ggml.{name}", False)
    if not isinstance(value, bool):
        raise Refused(f"tokenizer.ggml.{name} is not a bool: {value!r}")
    return value


def read_merges(kv) -> list[tuple[str, str]]:
    """The pairs by rank; the reference keeps the first of equal ones, and cuts at the first space after a character."""
    texts = dict.fromkeys(_strings(kv, "tokenizer.ggml.merges"))
    pairs = [tuple(text.split(" ")) for text in texts]
    if all(map(all, pairs)) and set(map(len, pairs)) <= {2}:
        return pairs
    cuts = (text.find(" ", 1) for text in texts)
    pairs = [(text[:cut], text[cut + 1 :]) for text, cut in zip(texts, cuts, strict=True) if cut > 0]
    return [(left, right) for left, right in pairs if " " not in left + right]  # a word has no spaces


def end_texts(kv) -> tuple[str, str, bool, bool]:
    """For a chat template: the texts of the start and end tokens ("" for none), and whether they are added."""
    tokens = kv["tokenizer.ggml.tokens"] if kv.kind("tokenizer.ggml.tokens") == "arr[str]" else ()
    types = kv["tokenizer.ggml.token_type"] if kv.kind("tokenizer.ggml.token_type") == "arr[i32]" else ()
    texts, added = [], []
    for name in ("bos", "eos"):
        token = kv.get(f"tokenizer.ggml.{name}_token_id")
        found = isinstance(token, int) and not isinstance(token, bool) and 0 <= token < len(tokens)
        text = tokens[token].decode("utf-8", "replace") if found else ""
        if found and (token >= len(types) or TYPES.get(int(types[token])) == NORMAL):
            text = b"".join(shown(text)).decode("utf-8", "replace")
        texts.append(text)
        added.append(found and _flag(kv, f"add_{name}_token"))
    return *texts, *added


def shown(text: str) -> Iterator[bytes]:
    """The bytes that a normal token's characters stand for; one that stands for none is told as the reference does."""
    for character in text.encode("utf-8", "surrogateescape").decode("utf-8", "bankml.reference"):
        if character in BYTES:
            yield bytes([BYTES[character]])
        else:
            raw = text.encode("utf-8", "surrogateescape")
            yield b"[UNK_BYTE_0x" + character.encode("utf-8", "surrogatepass").hex().encode() + raw + b"]"
