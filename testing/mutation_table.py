"""What is turned, one thing at a time, the tests that must notice (STAGES), and the gate's stages that must (GATE)."""

from dataclasses import dataclass

STAGES = {  # name -> what pytest runs
    "embed": ("tests/cpu/test_embed.py", "-k", "reference and golden"),
    "norm": ("tests/cpu/test_norm.py", "-k", "reference and golden"),
    "norm ties": ("tests/cpu/test_norm.py", "-k", "plain_twin or exact_ties or decides"),
    "rope": ("tests/cpu/test_rope.py", "-k", "test_equals_the_reference and golden"),
    "attention reference": ("tests/cpu/test_attention.py", "-k", "equals_the_reference and golden-reference"),
    "attention tiled": ("tests/cpu/test_attention.py", "-k", "equals_the_reference and golden-tiled"),
    "attention split": ("tests/cpu/test_attention.py", "-k", "equals_the_reference and golden-split"),
    "swiglu": ("tests/cpu/test_swiglu.py", "-k", "reference and golden"),
    "q1_0 products": ("tests/cpu/test_products.py", "-k", "test_products and golden and q1_0"),
    "q2_0 products": ("tests/cpu/test_products.py", "-k", "test_products and golden and q2_0"),
    "f16 products": ("tests/cpu/test_products.py", "-k", "test_products and golden and f16"),
    "q1_0 dots": ("tests/cpu/test_products.py", "-k", "test_dots and golden and q1_0"),
    "quantize": ("tests/cpu/test_quantize.py", "-k", "test_q8_0_rows and golden"),
    "q8_0 dots": ("tests/cpu/test_dot_q8_0.py", "-k", "reference and golden"),
    "q8_0 attention": ("tests/cpu/test_attention_q8_0.py", "-k", "reference and golden"),
    "whole model": ("tests/test_forward.py", "-k", "recorded_one and llama-q1_0-untied"),
    "q8_0 live": ("tests/test_cache_q8_0.py", "-k", "recorded_one and llama-q1_0-untied"),
    "tokenizer": ("tests/test_tokenizer.py", "-k", "TestRecorded and ids and smollm2"),
    "template": ("tests/test_chat.py", "-k", "TestRecorded and test_prompts"),
    "other templates": ("tests/test_chat.py", "-k", "TestRecorded and test_other_templates"),
    "sampler": ("tests/test_sampler.py", "-k", "recorded_ones"),
    "convert": ("tests/test_convert.py", "-k", "recorded_files and not smollm2"),
    "card self-test": ("tests/gpu/test_canary.py", "-k", "drivers_pass and pocl and not software"),
}
GATE = {  # stage -> that of the gate (testing/stages) that must notice as well, live
    "embed": "embed and norm",
    "norm": "embed and norm",
    "norm ties": "embed and norm",
    "rope": "q, k, v and rope",
    "attention reference": "attention reference",
    "attention tiled": "attention tiled",
    "attention split": "attention split",
    "swiglu": "swiglu sweep",
    "q1_0 products": "q1_0 products",
    "q2_0 products": "q2_0 products",
    "f16 products": "f16 products",
    "q1_0 dots": "q1_0 products",
    "quantize": "q8_0 kernels",
    "q8_0 dots": "q8_0 kernels",
    "q8_0 attention": "q8_0 attention",
    "whole model": "whole model: llama q1_0",
    "q8_0 live": "whole models over q8_0",
    "tokenizer": "tokenizer",
    "template": "chat template",
    "other templates": "chat template",
    "sampler": "sampler",
    "convert": "convert",
    "card self-test": "card self-test",
}


@dataclass(frozen=True)
class Mutation:
    """`before`, which stands exactly once in `file`, becomes `after`; quick: seconds, for CI."""

    name: str
    stage: str
    file: str
    before: str
    after: str
    quick: bool = False


def _kernel(name, stage, file, before, after, quick=False):
    return Mutation(name, stage, f"bankml/cpu/{file}.py", before, after, quick)


MUTATIONS = (
    _kernel("q2_0 codes stand for 0 to 3", "embed", "embed", "np.float32(code - 1) * d", "np.float32(code) * d"),
    _kernel(
        "norm: scale and weight multiplied first",
        "norm",
        "norm",
        "scaled = b.ir.fmul(b.load(b.pointer(x, offset), wide), scale)\n"
        "        b.store(b.ir.fmul(scaled, b.load(b.pointer(weight, offset), wide)), b.pointer(out, offset))",
        "scaled = b.ir.fmul(b.load(b.pointer(weight, offset), wide), scale)\n"
        "        b.store(b.ir.fmul(scaled, b.load(b.pointer(x, offset), wide)), b.pointer(out, offset))",
        quick=True,
    ),
    _kernel(
        "norm: the order of the sum is never in doubt", "norm ties", "norm", "np.float64(2.0**-51)", "np.float64(0)"
    ),
    _kernel("norm: the chain of sums is never run", "norm ties", "norm", "if low == high:", "if low <= high:"),
    _kernel(
        "rope: the rotation is not fused",
        "rope",
        "rope",
        "return fused, b.fma(x0, sine, b.ir.fmul(x1, cosine))",
        "return fused, b.ir.fadd(b.ir.fmul(x0, sine), b.ir.fmul(x1, cosine))",
    ),
    _kernel(
        "rope: YaRN's mix is not fused",
        "rope",
        "rope",
        "return fma(interpolated, np.float32(1) - mix, extrapolated * mix)",
        "return interpolated * (np.float32(1) - mix) + extrapolated * mix",
    ),
    _kernel(
        "attention: accumulators added in turn",
        "attention reference",
        "attention_scores",
        "return b.ir.fadd(b.ir.fadd(sums[0], sums[2]), b.ir.fadd(sums[1], sums[3]))",
        "return b.ir.fadd(b.ir.fadd(sums[0], sums[1]), b.ir.fadd(sums[2], sums[3]))",
    ),
    _kernel(
        "attention: sums kept in float32",
        "attention reference",
        "attention_values",
        "    return b.half_to_f32(b.f32_to_half(v))",
        "    return v",
    ),
    _kernel(
        "attention: the row's own cell is masked",
        "attention reference",
        "attention_reference",
        "pos + row + 1",
        "max(1, pos + row)",
    ),
    _kernel(
        "tiled: a row sees the cell after its own",
        "attention tiled",
        "attention_tiled",
        'seen = b.ir.icmp_signed(">=", row, first)',
        'seen = b.ir.icmp_signed(">=", b.ir.add(row, b.splat(i32, LANES, 1)), first)',
    ),
    _kernel(
        "tiled: weights added in float32",
        "attention tiled",
        "attention_tiled",
        "halves = [b.ir.fpext(half, vec(f64, LANES // 2)) for half in (b.low(e[0]), b.high(e[0]))]",
        "halves = [b.ir.fpext(b.ir.fptrunc(b.ir.fadd(b.ir.fpext(half, vec(f64, LANES // 2)), total),"
        " vec(f32, LANES // 2)), vec(f64, LANES // 2)) for half, total in"
        " zip((b.low(e[0]), b.high(e[0])), carried, strict=True)]\n            return halves",
    ),
    _kernel(
        "split: the sum of weights is not fused",
        "attention split",
        "attention_split",
        "weight_sum = fma(weight_sum, old_scale, part_sum * new_scale)",
        "weight_sum = weight_sum * old_scale + part_sum * new_scale",
    ),
    _kernel(
        "split: chunks a cell longer",
        "attention split",
        "attention_split",
        "length = (padded + chunks - 1) // chunks",
        "length = (padded + chunks - 1) // chunks + 1",
    ),
    _kernel(
        "swiglu: libm's exp where ggml has its own",
        "swiglu",
        "swiglu",
        "    wide = (last - first) // LANES\n",
        "    _swiglu_rest(gate, up, out, first, last)\n    wide, first = 0, last\n",
        quick=True,
    ),
    _kernel(
        "swiglu: exp's polynomial is not fused",
        "swiglu",
        "swiglu",
        'j = b.fma(b.fma(high, square, low), square, build.fmul(number("0x1.ffffecp-1"), rest))',
        'j = build.fadd(build.fmul(b.fma(high, square, low), square), build.fmul(number("0x1.ffffecp-1"), rest))',
    ),
    _kernel(
        "q1_0: 128-blocks are not fused",
        "q1_0 products",
        "q1_0_avx2",
        "return [b.fma(d0[a], sums[a], acc[a]) for a in range(4)]",
        "return [build.fadd(build.fmul(d0[a], sums[a]), acc[a]) for a in range(4)]",
    ),
    _kernel(
        "q1_0: -128 does not wrap",
        "q1_0 dots",
        "q1_0_avx2",
        "negated = build.sub(b.zero(i8, 32), values)",
        'negated = b.call("llvm.ssub.sat.v32i8", values.type, [b.zero(i8, 32), values])',
    ),
    _kernel(
        "lanes added in another order",
        "q1_0 products",
        "lanes",
        "return b.ir.fadd(b.ir.fadd(half[0], half[2]), b.ir.fadd(half[1], half[3]))",
        "return b.ir.fadd(b.ir.fadd(half[0], half[1]), b.ir.fadd(half[2], half[3]))",
    ),
    _kernel(
        "q2_0: 64-blocks are not fused",
        "q2_0 products",
        "q2_0_avx2",
        "return b.fma(d0, b.fma(second, exact[1], b.ir.fmul(first, exact[0])), acc)",
        "return b.ir.fadd(b.ir.fmul(d0, b.fma(second, exact[1], b.ir.fmul(first, exact[0]))), acc)",
    ),
    _kernel(
        "f16: lanes of a dot added in another order",
        "f16 products",
        "lanes",
        "    pairs = b.ir.fadd(four, b.shuffle(four, None, [1, 0, 3, 2]))\n"
        "    return b.ir.fadd(b.element(pairs, 0), b.element(pairs, 2))",
        "    pairs = b.ir.fadd(four, b.shuffle(four, None, [2, 3, 0, 1]))\n"
        "    return b.ir.fadd(b.element(pairs, 0), b.element(pairs, 1))",
    ),
    _kernel(
        "quantize: divided by the rounded scale",
        "quantize",
        "quantize",
        "build.fdiv(ir.Constant(f32, 127.0), amax), zero)",
        "build.fdiv(ir.Constant(f32, 1.0), _through_half(b, scale)), zero)",
        quick=True,
    ),
    _kernel(
        "q8_0: -128 does not wrap",
        "q8_0 dots",
        "dot_q8_0",
        "b.ir.sub(b.zero(i8, count), y)",
        'b.call(f"llvm.ssub.sat.v{count}i8", y.type, [b.zero(i8, count), y])',
        quick=True,
    ),
    _kernel(
        "q8_0: values are not fused",
        "q8_0 attention",
        "attention_q8_0",
        "out += [b.fma(value, lanes[head], carried[len(out) + j]) for j, value in enumerate(widened)]",
        "out += [b.ir.fadd(b.ir.fmul(v, lanes[head]), carried[len(out) + j]) for j, v in enumerate(widened)]",
    ),
    Mutation(
        "the tiled attention a row early",
        "whole model",
        "bankml/forward.py",
        "kernel_for(len(batch), start + first",
        "kernel_for(len(batch) + 1, start + first",
    ),
    _kernel(
        "q8_0 caches: V is not rotated",
        "q8_0 live",
        "store_q8_0",
        "rotate(here, here, rot, width)",
        "rotate(here, here, rot, 0)",
    ),
    Mutation(
        "a merge is lost",
        "tokenizer",
        "bankml/vocabulary.py",
        "        return pairs\n    cuts",
        "        return pairs[:500] + pairs[501:]\n    cuts",
        quick=True,
    ),
    Mutation(
        "white space before a digit is shared out",
        "tokenizer",
        "bankml/tokenizer.py",
        r"[ \t-\r]+(?![^ \t-\r0-9])",
        r"[ \t-\r]+(?![^ \t-\r])",
        quick=True,
    ),
    Mutation(
        "text parts are joined by a space",
        "template",
        "bankml/chat.py",
        'message["content"] = _joined(content, "\\n")',
        'message["content"] = _joined(content, " ")',
        quick=True,
    ),
    Mutation(
        "template: the newline after a block stays",
        "other templates",
        "bankml/sandbox.py",
        "trim_blocks=True",
        "trim_blocks=False",
    ),
    _kernel(
        "sampler: of ties the later one",
        "sampler",
        "order",
        "if not keys[i] <= keys[order[0]]:",
        "if not keys[i] < keys[order[0]]:",
    ),
    Mutation(
        "convert: the mean is summed in pairs",
        "convert",
        "bankml/quantizers.py",
        "_to_f16(total / np.float32(128))",
        "_to_f16(np.abs(groups).sum(axis=1) / np.float32(128))",
        quick=True,
    ),
    Mutation(
        "convert: q2_0 divides by the rounded scale",
        "convert",
        "bankml/quantizers.py",
        "np.float32(1) / d, np.float32(0))",
        "np.float32(1) / d.astype(np.float16).astype(np.float32), np.float32(0))",
    ),
    Mutation(
        "card: -128 does not wrap",
        "card self-test",
        "kernels.cl/q1_0.cl",
        "return ((int)v.x + (int)v.y) + ((int)v.z + (int)v.w);",
        "int4 q = convert_int4(*quants), m = convert_int4(as_char4(negate));\n"
        "    int4 s = (q ^ m) - m;\n    return (s.x + s.y) + (s.z + s.w);",
    ),
)
