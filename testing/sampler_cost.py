"""What sampling costs of a decoded token: the default chain and a few others, on a model's own logits.

    python -m testing.sampler_cost MODEL [TOKENS]

Prints medians in milliseconds, and each chain's share of a token. Decoding goes on with the default chain's tokens.
"""

import sys
import time
from statistics import median

from bankml.forward import Weights
from bankml.params import Params
from bankml.sampler import Sampler

CHAINS = {
    "default": {},
    "greedy": {"temperature": 0.0},
    "penalties": {"repeat_penalty": 1.1, "presence_penalty": 0.5},
    "no top-k": {"top_k": 0, "top_p": 1.0},
    "log-probabilities": {"n_probs": 10},
}


def timed(call, *arguments):
    """(result, milliseconds)."""
    start = time.perf_counter()
    result = call(*arguments)
    return result, 1000 * (time.perf_counter() - start)


def main():
    weights = Weights.open(sys.argv[1], gpu=False)
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    prompt, first = list(range(100, 132)), None
    caches = weights.caches(n_ctx=512)
    samplers = {name: Sampler(Params(seed=1, **settings)) for name, settings in CHAINS.items()}
    for sampler in samplers.values():
        sampler.begin(prompt)
    result_norm, decode, spent = weights.prefill(caches, prompt), [], {name: [] for name in CHAINS}
    for _ in range(tokens):
        logits, of_logits = timed(weights.logits, result_norm)
        for i, (name, sampler) in enumerate(samplers.items()):
            drawn, took = timed(sampler.sample, logits)
            if sampler.params.n_probs:
                took += timed(sampler.probs, logits)[1]
            spent[name].append(took)
            first = drawn if i == 0 else first
            sampler.accept(first)
        result_norm, of_layers = timed(weights.decode, caches, first)
        decode.append(of_logits + of_layers)
    whole = median(decode[2:])
    print(f"decode {whole:.2f} ms per token, vocabulary {len(logits):,}")
    for name, times in spent.items():
        print(f"{name:>18} {median(times[2:]):.4f} ms, {100 * median(times[2:]) / whole:.3f} %")


if __name__ == "__main__":
    main()
