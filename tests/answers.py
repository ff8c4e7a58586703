"""Questions to SmolLM2-135M-Instruct (F16) that the reference answered: the command must answer so, token for token."""

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
GREEDY = {"temperature": 0.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}
SERVER = GREEDY | {"temperature": 0.8, "seed": 42}


def chat(question: str, system: str = SYSTEM) -> str:
    """What the model's template makes of a question; without a system message it puts its own."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


OVER_Q8_0 = ("raw", "seeded")  # cases that are also recorded over a q8_0 cache

# name -> (prompt as text, most tokens, sampling, the command's arguments beside those of the sampling)
STORY = "Tell me a story about a fox."
CASES = {
    "capital": (chat("What is the capital of France?"), 32, GREEDY, ["What is the capital of France?"]),
    "raw": ("Once upon a time", 24, GREEDY, ["--raw", "Once upon a time"]),
    "system": (
        chat("Who are you?", "You are a pirate."),
        24,
        GREEDY,
        ["--system", "You are a pirate.", "Who are you?"],
    ),
    "seeded": (chat(STORY), 48, SERVER, [STORY]),
    "another seed": (chat(STORY), 24, SERVER | {"seed": 43}, [STORY]),
    "whole vocabulary": (
        chat(STORY),
        24,
        {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7},
        [STORY],
    ),
    "top-p alone": (chat(STORY), 24, SERVER | {"top_k": 0, "top_p": 0.9, "min_p": 0.0, "temperature": 1.2}, [STORY]),
    "emoji": (chat("Reply with emoji only: 🚀🎉"), 24, SERVER, ["Reply with emoji only: 🚀🎉"]),
}
