"""A conversation: its messages, kept in a file as JSON and read back."""

import json
import os
from pathlib import Path

from bankml.errors import UsageError
from bankml.files import appearing

MAX_BYTES = 1 << 26
ROLES = ("system", "user", "assistant")


class Conversation:
    """`messages` as a chat template takes them; `system` is the text in front of them, None where there is none."""

    def __init__(self, system: str | None = None):
        self.messages: list[dict[str, str]] = []
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message; setting it leaves the rest as it is."""
        first = self.messages[0] if self.messages else None
        return first["content"] if first and first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None):
        rest = self.messages if self.system is None else self.messages[1:]
        self.messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    def asked(self, text: str) -> list[dict[str, str]]:
        """The messages with a question more, which is not kept."""
        return [*self.messages, {"role": "user", "content": text}]

    def add(self, question: str, answer: str):
        """Keep a turn."""
        self.messages = [*self.asked(question), {"role": "assistant", "content": answer}]

    def reset(self):
        """Forget everything but the system message."""
        self.messages = self.messages[: self.system is not None]

    @property
    def turns(self) -> int:
        """How many questions were answered."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def save(self, path):
        """Write `{"messages": [...]}`; an existing file is replaced only where it is a conversation too.

        Raises UsageError where that cannot be.
        """
        path = Path(path).expanduser()
        if os.path.lexists(path):
            try:
                Conversation.load(path)
            except UsageError:
                raise UsageError(f"{path} exists and is no conversation; choose another name") from None
        with appearing(path) as file:
            file.write(json.dumps({"messages": self.messages}, ensure_ascii=True, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path) -> "Conversation":
        """Read one back. Raises UsageError for a file that is missing or holds something else."""
        path = Path(path).expanduser()
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        found = cls()
        try:
            found.messages = json.loads(data)["messages"]
            fits = [set(m) == {"role", "content"} and isinstance(m["content"], str) for m in found.messages]
            roles = [m["role"] for m in found.messages[found.system is not None :]]
            if not all(fits) or roles != ["user", "assistant"] * (len(roles) // 2):
                raise ValueError
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            raise UsageError(f"{path}: it holds no conversation that bankml has saved") from None
        return found
