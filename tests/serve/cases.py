"""Requests that llama-server b11192 was sent, one after the other: for the recorder and for the test.

The order counts: what is taken over from the request before is part of the answer (`cached_tokens`).
"""

import json

GREEDY = {"temperature": 0.0, "seed": 1}
SEEDED = {"temperature": 0.8, "seed": 42}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARTS = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
TOOLS = [
    {"role": "user", "content": "How warm is it in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "warmth", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "31 degrees"},
]
CHAT, TEXT, OWN = "/v1/chat/completions", "/v1/completions", "/completion"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EMOJI = [{"role": "user", "content": "Reply with emoji only: 🚀🎉"}]
STORY = {"prompt": "Once upon a time"}

# name -> (path, body)
CASES = {
    "chat": (CHAT, {"messages": FRANCE, "max_tokens": 32, **GREEDY}),
    "chat, streamed": (CHAT, {"messages": FRANCE, "max_tokens": 32, "stream": True, **GREEDY}),
    "chat, streamed with usage": (CHAT, {"messages": FRANCE, "max_tokens": 32, **USAGE, **GREEDY}),
    "chat, to the limit": (CHAT, {"messages": FRANCE, "max_completion_tokens": 4, **GREEDY}),
    "chat, stop inside tokens": (CHAT, {"messages": FRANCE, "stop": ["e is P"], **GREEDY}),
    "chat, stop inside tokens, streamed": (CHAT, {"messages": FRANCE, "stop": "e is P", "stream": True, **GREEDY}),
    "chat, logprobs": (CHAT, {"messages": FRANCE, "logprobs": True, "top_logprobs": 3, **GREEDY}),
    "chat, parts": (CHAT, {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 24, **SEEDED}),
    "chat, tools in the history": (CHAT, {"messages": TOOLS, "max_tokens": 24, **GREEDY}),
    "chat, emoji, streamed": (CHAT, {"messages": EMOJI, "max_tokens": 24, **USAGE, **SEEDED}),
    "chat, samplers of llama-server": (
        CHAT,
        {
            "messages": FRANCE,
            "max_tokens": 24,
            "top_k": 20,
            "min_p": 0.1,
            "repeat_penalty": 1.3,
            "dry_multiplier": 0.8,
            "logit_bias": {"7042": -100},
            **SEEDED,
        },
    ),
    "text": (TEXT, {**STORY, "max_tokens": 24, **GREEDY}),
    "text, seeded": (TEXT, {**STORY, "max_tokens": 24, **SEEDED}),
    "text, streamed": (TEXT, {**STORY, "max_tokens": 12, **USAGE, **SEEDED}),
    "text, logprobs": (TEXT, {**STORY, "max_tokens": 4, "logprobs": 2, **GREEDY}),
    "text, tokens": (TEXT, {"prompt": [6403, 2134, 253, 655], "max_tokens": 4, **GREEDY}),
    "own": (OWN, {**STORY, "n_predict": 8, "return_tokens": True, **GREEDY}),
    "own, uncached": (OWN, {**STORY, "n_predict": 8, "cache_prompt": False, "return_tokens": True, **SEEDED}),
    "own, streamed": (OWN, {**STORY, "n_predict": 8, "stream": True, "return_tokens": True, **GREEDY}),
    "own, mixed prompt": (OWN, {"prompt": ["Once", 2134, " a time"], "n_predict": 4, "return_tokens": True, **GREEDY}),
    "own, probabilities": (OWN, {**STORY, "n_predict": 3, "n_probs": 2, **SEEDED}),
    "own, after the chain": (OWN, {**STORY, "n_predict": 3, "n_probs": 2, "post_sampling_probs": True, **SEEDED}),
    "own, stop word": (OWN, {**STORY, "n_predict": 24, "stop": ["Nova Haven"], "n_probs": 1, **GREEDY}),
    "own, no end": (OWN, {"prompt": "The end.<|im_end|>", "n_predict": 6, "ignore_eos": True, **GREEDY}),
    "tokenize": ("/tokenize", {"content": "Hello <|im_end|> é👩‍🚀", "with_pieces": True}),
    "tokenize, literal": ("/tokenize", {"content": "a <|im_end|>", "parse_special": False, "add_special": True}),
    "tokenize, mixed": ("/tokenize", {"content": ["Hello", 2, " world"]}),
    "detokenize": ("/detokenize", {"tokens": [1, 4093, 198, 6004, 2]}),
    "apply template": ("/apply-template", {"messages": TOOLS}),
    "erase": ("/slots/0?action=erase", {}),
    # what is refused
    "n": (CHAT, {"messages": FRANCE, "n": 2}),
    "top_logprobs alone": (CHAT, {"messages": FRANCE, "top_logprobs": 2}),
    "no messages": (CHAT, {"max_tokens": 1}),
    "an image": (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    "too long": (TEXT, {"prompt": "word " * 1500, "max_tokens": 1}),
    "no prompt": (TEXT, {"max_tokens": 1}),
}
BETTER = {"an image": 400}  # statuses where the reference answers with a 500
VOLATILE = {"id", "created", "model", "system_fingerprint", "timings", "generation_settings", "message"}


def cleaned(value, errors=False):
    """Without what differs from run to run: names, times; of errors, the words. Numbers have 6 digits."""
    if isinstance(value, dict):
        return {
            key: cleaned(item, errors)
            for key, item in value.items()
            if (key not in VOLATILE or (key == "id" and isinstance(item, int)) or (key == "message" and not errors))
        }
    if isinstance(value, list):
        return [cleaned(item, errors) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def reply(status: int, text: str):
    """[status, the JSON objects of a reply, cleaned]: one, or those of a stream."""
    if text.startswith("data: "):
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [status, [cleaned(json.loads(event)) if event != "[DONE]" else event for event in events]]
    return [status, cleaned(json.loads(text), errors=status != 200)]
