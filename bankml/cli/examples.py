"""What each command's help ends with: examples. tests/test_docs.py runs them."""

EXAMPLES = {
    "generate": (
        'bankml generate "What is the capital of France?"',
        "bankml generate -m MODEL.gguf --max 20 --temp 0.8 --seed 42 --raw 'Once upon a time'",
        "bankml generate --json --max 5 - < prompt.txt",
    ),
    "chat": ("bankml chat --system 'Answer in one sentence.'",),
    "guard": ("bankml guard MODEL.gguf", "bankml guard MODEL.gguf --json"),
    "info": ("bankml info MODEL.gguf",),
    "verify": ("bankml verify MODEL.gguf",),
    "tokenize": ("bankml tokenize MODEL.gguf < prompt.txt",),
    "chat-template": ("bankml chat-template MODEL.gguf < messages.json",),
    "pull": ("bankml pull smollm2", "bankml pull smollm2 --type q2_0"),
    "models": ("bankml models",),
    "convert": ("bankml convert MODEL.gguf SMALL.gguf --type q1_0",),
    "oracle": ("bankml oracle fetch", "bankml oracle check MODEL.gguf --tokens 20"),
    "serve": ("bankml serve -m MODEL.gguf --port 9000",),
    "gpu": ("bankml gpu", "bankml gpu --verify --device pocl"),
    "bench": (
        "bankml bench -m MODEL.gguf --rounds 3",
        "bankml bench --shape bonsai-1.7b:q1_0 --prompt 128 --decode 32",
    ),
}


def epilog(name: str, before: str | None) -> str | None:
    """The end of a command's help: what it says itself, then its examples."""
    lines = EXAMPLES.get(name, ())
    examples = "\n  ".join(["examples:" if len(lines) > 1 else "example:", *lines]) if lines else None
    return "\n\n".join(filter(None, [before, examples])) or None
