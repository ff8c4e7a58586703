"""What the reference reads of a file beside its weights: the numbers of its header, its token ids, its pieces."""

import ctypes

from bankml.errors import BankmlError
from bankml.oracle.compare import Difference, Stage

SAMPLE = (
    "",
    " ",
    "Hello, world!",
    "  two spaces,\ttab\r\n\nand new lines  \n",
    "It's 1234567890 o'clock; we'll see: 3.14159e-10.",
    "def f(x):\n    return x ** 2  # a comment\n",
    "Straße, naïve café, Ελληνικά, Привет, שלום, مرحبا",
    "今日は世界。你好，世界！안녕하세요",
    "👩‍👩‍👧 🇫🇷 e\u0301 \u200b\ufeff\u00a0",
    "ALLCAPSandCamelCase_snake-kebab/slash\\back",
    "'S 'LL 'Ve don't DON'T",
    "a" * 70 + "!" * 35,
    "\x00\x01\x7f",
    '{"key": [1, 2.5, null], \'other\': "\\u00e9"}',
)
SPECIALS = 64  # how many of the model's own control tokens go into texts
CONTROL, USER_DEFINED = 1 << 3, 1 << 4  # enum llama_token_attr


class ReferenceWords:
    """The vocabulary of a `ReferenceModel`, for as long as that is open."""

    def __init__(self, model):
        self.api, self.model = model.api, model.model
        self.vocab = self.api.llama_model_get_vocab(self.model)
        self.n_tokens = model.n_vocab

    def facts(self, words: bool) -> dict[str, int]:
        """What the header says, as the library has read it; with `words`, of the vocabulary too (-1: no such token)."""
        api, model, vocab = self.api, self.model, self.vocab
        found = {
            "layers": api.llama_model_n_layer(model),
            "embedding length": api.llama_model_n_embd(model),
            "heads": api.llama_model_n_head(model),
            "key and value heads": api.llama_model_n_head_kv(model),
            "trained context": api.llama_model_n_ctx_train(model),
            "vocabulary": self.n_tokens,
        }
        if words:
            found |= {
                "begin token": api.llama_vocab_bos(vocab),
                "end token": api.llama_vocab_eos(vocab),
                "begin token is added": int(api.llama_vocab_get_add_bos(vocab)),
            }
        return found

    def texts(self) -> list[bytes]:
        """The fixed sample, then texts around the model's own control tokens."""
        marks = CONTROL | USER_DEFINED
        special = [token for token in range(self.n_tokens) if self.api.llama_vocab_get_attr(self.vocab, token) & marks]
        around = [b"one " + self.piece(token) + b" two" for token in special[:SPECIALS]]
        return [text.encode() for text in SAMPLE] + around

    def tokenize(self, text: bytes) -> list[int]:
        """Ids of `text`, control tokens in it counted as such, none added."""
        room = len(text) + 8
        ids = (ctypes.c_int32 * room)()
        count = self.api.llama_tokenize(self.vocab, text, len(text), ids, room, False, True)
        if count < 0:
            raise BankmlError(f"the reference does not tokenize a text of {len(text)} bytes")
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of a token, a control token's text too."""
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self.api.llama_token_to_piece(self.vocab, token, buffer, room, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            room = -count


def compare_lists(run: str, name: str, pairs) -> Stage:
    """A stage of pairs (expected, got) of sequences: a pair is a row, an item a column; values are told as text."""
    stage = Stage(name, run=run)
    for row, (want, have) in enumerate(pairs):
        stage.total += 1
        if want == have:
            stage.equal += 1
        elif stage.first_difference is None:
            column = next((i for i, (a, b) in enumerate(zip(want, have, strict=False)) if a != b), None)
            column = min(len(want), len(have)) if column is None else column
            sides = (repr(side[column]) if column < len(side) else "nothing" for side in (want, have))
            stage.first_difference = Difference(row, column, *sides)
    return stage
