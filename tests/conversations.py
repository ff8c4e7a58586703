"""Conversations that llama-server held (testing/record_conversations.py): the engine must hold them so, turn by turn.

They run alone, one after the other in one server, and interleaved, where each turn finds another's in the slot.
"""

from dataclasses import dataclass, field

import numpy as np

from tests import models, vocab
from tests.gguf_writer import gguf

GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.8, "seed": 42}
LONG = (
    "Here are my notes: the bakery opens at seven, the market at eight, the library at nine, and the museum at ten. "
    "The bus to the lake leaves every hour from the square behind the church, and the last one comes back at six. "
) * 4


@dataclass(frozen=True)
class Talk:
    """What the user says, turn by turn, and how the answers are sampled; `system` is None where nobody says it."""

    says: tuple[str, ...]
    sampling: dict = field(default_factory=lambda: GREEDY)
    system: str | None = None
    most: int = 32

    def opening(self) -> list[dict]:
        """The messages before the first turn."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


TALKS = (
    Talk(("What is the capital of France?", "And of Italy?", "Which of the two is larger?", "Thank you!")),
    Talk(("Tell me a story about a fox.", "Go on.", "How does it end?"), SEEDED),
    Talk((LONG + "When does the library open?", "And the museum?", LONG + "Say it again."), SEEDED, "You are brief."),
)


@dataclass(frozen=True)
class Setting:
    """How a server is started. cache_ram: MiB of the host prompt cache, None for the server's default."""

    model: str
    kind: str = "f16"
    n_ctx: int = 2048
    cache_ram: int | None = None
    interleaved: bool = False
    most: int | None = None  # tokens of an answer, in the place of the talks' own

    def __str__(self):
        ram = "" if self.cache_ram is None else f"-ram-{self.cache_ram}"
        ram += "" if self.most is None else f"-most-{self.most}"
        return f"{self.model}-{self.kind}-{self.n_ctx}{ram}-{'interleaved' if self.interleaved else 'alone'}"

    def order(self) -> list[int]:
        """Whose turn it is, by the number of the talk."""
        turns = [(turn, i) for i, talk in enumerate(TALKS) for turn in range(len(talk.says))]
        return [i for _, i in (sorted(turns) if self.interleaved else turns)]


SETTINGS = (
    *(
        Setting(model, kind, interleaved=interleaved)
        for model in ("smollm2", "tiny")
        for kind in ("f16", "q8_0")
        for interleaved in (False, True)
    ),
    Setting("tiny", cache_ram=1, interleaved=True),  # mebibytes; the copies of the three do not fit
    Setting("tiny", cache_ram=0, interleaved=True),
    Setting("tiny", n_ctx=512),  # the prompts of the third talk are too long
    Setting("tiny", n_ctx=256, most=200),  # answers reach the end of the context
)


def write_tiny(path, kind="q1_0"):
    """A living model over bytes and chat markers; only printable ASCII is ever likely. Returns its path."""
    shape = models.Shape("qwen3", kind, False, layers=3, vocab=258)
    kv = models.metadata(shape) | {
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "qwen2"),
        "tokenizer.ggml.tokens": ("arr[str]", [*vocab.byte_characters(), "<|im_start|>", "<|im_end|>"]),
        "tokenizer.ggml.token_type": ("arr[i32]", [vocab.NORMAL] * 256 + [vocab.CONTROL] * 2),
        "tokenizer.ggml.merges": ("arr[str]", []),
        "tokenizer.ggml.eos_token_id": ("u32", 257),
    }
    tensors = list(models.tensors("tiny-talk", shape))
    (output,) = (tensor for tensor in tensors if tensor.name == "output.weight")
    rows = np.frombuffer(output.data, np.uint8).reshape(shape.vocab, -1, 2 if kind == "f16" else 18).copy()
    quiet = np.ones(shape.vocab, bool)
    quiet[[*range(32, 127), 257]] = False
    rows[quiet, :, :2] = 0  # such a row has a logit of 0, which never wins
    output.data = rows.tobytes()
    path.write_bytes(gguf(kv, tensors))
    return path
