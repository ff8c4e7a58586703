"""Answers in the shape that users of llama-cpp-python and of OpenAI's interface know, with short names beside."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

from bankml.generation import Generation
from bankml.sampler_chain import TokenProbs


class Completion(dict[str, Any]):
    """A whole answer: `answer["choices"][0]["text"]` (of a chat: `["message"]["content"]`), and `answer["usage"]`."""

    generation: Generation

    @property
    def text(self) -> str:
        """The answer's text."""
        choice = self["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"]

    @property
    def tokens(self) -> list[int]:
        """The answer's tokens, without the end token."""
        return self.generation.tokens

    @property
    def probs(self) -> list[TokenProbs]:
        """Log-probabilities of each token, where `n_probs` asked for them."""
        return self.generation.probs

    @property
    def finish_reason(self) -> str:
        """ "stop": an end token or a stop string; "length": `max_tokens`, or the context is full; "cancelled"."""
        return self["choices"][0]["finish_reason"]


class Chunk(dict[str, Any]):
    """A piece of an answer: `chunk["choices"][0]["text"]`, of a chat `["delta"].get("content")`; or `chunk.text`."""

    @property
    def text(self) -> str:
        """The text that this chunk brings."""
        choice = self["choices"][0]
        return choice["delta"].get("content", "") if "delta" in choice else choice["text"]

    @property
    def finish_reason(self) -> str | None:
        """Of the last chunk; None before."""
        return self["choices"][0]["finish_reason"]


def completion(generation: Generation, model: str, chat: bool, before: str = "") -> Completion:
    """Run it to its end. before: a text to put in front, the prompt's if it is to be echoed."""
    text = before + "".join(step.text for step in generation)
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": generation.finish_reason}
    answer = Completion(_head(model, "chat.completion" if chat else "text_completion", chat), choices=[choice])
    answer["usage"] = usage(generation)
    answer.generation = generation
    return answer


def chunks(generation: Generation, model: str, chat: bool, before: str = "") -> Iterator[Chunk]:
    """The same piece by piece, as it comes; left early, it gives the slot back."""
    head = _head(model, "chat.completion.chunk" if chat else "text_completion", chat)

    def chunk(text, reason=None, **delta):
        content = {"delta": ({"content": text} if text else {}) | delta} if chat else {"text": text}
        return Chunk(head, choices=[{"index": 0, **content, "logprobs": None, "finish_reason": reason}])

    with generation:
        if chat:
            yield chunk("", role="assistant")
        if before:
            yield chunk(before)
        for step in generation:
            if step.text:
                yield chunk(step.text)
        yield chunk("", generation.finish_reason)


def usage(generation: Generation) -> dict[str, Any]:
    """Counts as llama-server gives them: the end token is one of the completion's."""
    prompt, completed = len(generation.prompt), generation.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "total_tokens": prompt + completed,
        "prompt_tokens_details": {"cached_tokens": generation.cached or 0},
    }


def _head(model, kind, chat) -> dict[str, Any]:
    name = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}
