"""Record what the reference computes on the test models: tests/golden/models/NAME.json.

    python -m testing.record_model [NAME ...]

Every run of tests/models.py is one entry: a digest of each layer's rows, and digests row by row of result_norm and the
logits. `alive` says why a wrong bit would show: finite logits, attention spread over many cells, and how many logit
rows change when every value of one layer's output is one ulp off. No engine code takes part.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from bankml.oracle import library, record
from bankml.oracle.compare import bits
from bankml.oracle.model import ReferenceModel
from testing.record_convert import reference_convert
from tests import models
from tests.vocab import smollm2_gguf

ROOT = Path(__file__).resolve().parent.parent

ATTENTION_TOKENS = 64  # one micro-batch


def alive(model: ReferenceModel, name: str) -> dict:
    """What shows that the model would notice a wrong bit, from a prompt with every row out."""
    shape = models.shape_of(name)
    tokens = models.prompt(name, alive_tokens(name), shape.vocab)
    heads = [f"{side}cur-{il}" for side in "QK" for il in range(shape.layers)]
    model.forget()
    rows = model.decode(tokens[:ATTENTION_TOKENS], watch=heads).rows
    model.forget()
    run = model.decode(tokens, "all")
    norms, logits = [], []
    for il in range(shape.layers):
        model.forget()
        nudged = model.decode(tokens, "all", nudge=f"l_out-{il}")
        norms.append(_unequal_rows(nudged.result_norm, run.result_norm))
        logits.append(_unequal_rows(nudged.logits, run.logits))
    return {
        "tokens": len(tokens),
        "finite": bool(np.isfinite(run.logits).all()),
        "largest_attention": [round(largest_attention(rows, il, shape), 4) for il in range(shape.layers)],
        "result_norm_rows_changed_by_one_ulp": norms,
        "logits_rows_changed_by_one_ulp": logits,
    }


def alive_tokens(name: str) -> int:
    """The prompt of `alive`: fewer tokens where the logits, or the layers, are many."""
    return 80 if name in models.REAL else 320 if models.shape_of(name).vocab > 100_000 else 513


def _unequal_rows(a, b) -> int:
    return int((bits(a) != bits(b)).any(axis=1).sum())


def check_alive(facts: dict):
    """Hold a model to be alive. Late layers may show in result_norm alone: q8_0 rounds most of an ulp away."""
    assert facts["finite"], facts
    assert max(facts["largest_attention"]) < 0.9, facts
    assert min(facts["result_norm_rows_changed_by_one_ulp"]) > facts["tokens"] // 2, facts
    assert facts["logits_rows_changed_by_one_ulp"][0], facts


def largest_attention(rows: dict, il: int, shape) -> float:
    """The last token's largest share of attention in layer `il`, the mean over heads, in float64."""
    q = rows[f"Qcur-{il}"][-shape.heads :].astype(float)  # (heads, size)
    k = rows[f"Kcur-{il}"][-ATTENTION_TOKENS * shape.kv_heads :]  # RoPE's result is the last node of that name
    k = k.reshape(ATTENTION_TOKENS, shape.kv_heads, shape.head_dim).astype(float)
    k = np.repeat(k, shape.heads // shape.kv_heads, axis=1)
    scores = np.einsum("hd,chd->hc", q, k) / np.sqrt(shape.head_dim)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return float(shares.max(axis=1).mean())


def main(names):
    reference = library.load()
    with tempfile.TemporaryDirectory() as folder:
        for name in names or (*models.MODELS, *models.REAL):
            if name in models.REAL:
                path = models.build_real(name, smollm2_gguf(), folder, reference_convert)
            else:
                path = models.build(name, folder)
            with ReferenceModel(path, n_ctx=models.CONTEXT) as model:
                facts = alive(model, name)
                check_alive(facts)
                entries = {
                    str(run): record.of_stages(models.reference_stages(model, name, run)) for run in models.runs(name)
                }
            recording = {"stamp": record.stamp(reference), "model": models.sha256(path), "alive": facts}
            record.write(ROOT / "tests" / "golden" / "models" / f"{name}.json", recording | {"runs": entries})
            print(name, facts["largest_attention"], facts["logits_rows_changed_by_one_ulp"])


if __name__ == "__main__":
    main(sys.argv[1:])
