"""`bankml bench`: this machine's speed beside the reference's, bits compared in the same run."""

import json
import tempfile
from contextlib import nullcontext
from pathlib import Path

from bankml.cli import flags
from bankml.cli.signals import Interrupts
from bankml.errors import Refused, UsageError


def arguments(parser):
    """What the command takes."""
    parser.add_argument(
        "-m", "--model", type=flags.text, metavar="MODEL", help="a model file (default: the default model)"
    )
    parser.add_argument(
        "--shape", type=flags.text, metavar="SHAPE", help="random weights of a known shape, as bonsai-1.7b:q1_0"
    )
    parser.add_argument("--prompt", metavar="N,..", default="128", help="prompt lengths to measure (128)")
    parser.add_argument("--decode", metavar="N,..", default="32", help="cells before the decoded tokens (32)")
    parser.add_argument(
        "--rounds",
        type=flags.number(int, 1, 1000, "a whole number from 1 to 1000"),
        default=5,
        metavar="N",
        help="runs of each engine, medians taken (5)",
    )
    parser.add_argument(
        "--threads",
        type=flags.number(int, 1, flags.MAX_THREADS, f"a whole number from 1 to {flags.MAX_THREADS}"),
        default=2,
        metavar="N",
        help="threads of bankml (2)",
    )
    parser.add_argument("--reference-threads", metavar="N,..", default="2,1", help="tried, the best counts (2,1)")
    parser.add_argument("--variant", default="haswell", help="build of the reference's CPU library (haswell)")
    flags.cache_type(parser)
    flags.live(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _numbers(text, flag, most=1 << 20):
    try:
        numbers = tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        numbers = (-1,)
    if any(not 1 <= n <= most for n in numbers):
        raise UsageError(f"{flag} is {text!r}; it takes numbers from 1 to {most}, with commas between")
    return numbers


def run(args) -> int:
    """Measure, print, and fail if any bit differed; 130 (143) after Ctrl-C (SIGTERM)."""
    with Interrupts() as interrupts:
        try:
            return _measure(args)
        except KeyboardInterrupt:
            interrupts.ignore()
            return interrupts.exit_code


def _measure(args) -> int:
    from bankml import benchmark
    from bankml.guard import guard
    from bankml.kv_cache import KvType

    kind = KvType.from_environment(args.cache_type)
    prompts, cells = _numbers(args.prompt, "--prompt"), _numbers(args.decode, "--decode")
    tried = _numbers(args.reference_threads, "--reference-threads", flags.MAX_THREADS)
    if not tried or not prompts + cells:
        raise UsageError("nothing to measure: --reference-threads takes a number, as does --prompt or --decode")
    if args.model and args.shape:
        raise UsageError("give either --model or --shape")
    with tempfile.TemporaryDirectory(prefix="bankml-bench-") as folder:
        name, path = _model(args, Path(folder))
        context = guard(path, template=False).check().plan.shape.n_ctx_train
        if max(prompts + cells) > context:
            raise UsageError(f"{max(prompts + cells)} tokens do not fit the model's context of {context}")
        longest = max((*prompts, *cells), default=0) + 64
        with benchmark.Bench(
            name,
            path,
            threads=args.threads,
            reference_threads=tried,
            variant=args.variant,
            n_ctx=-(-longest // 256) * 256,
            rounds=args.rounds,
            kind=kind,
        ) as bench:
            with _view(args, bench):
                for n in prompts:
                    benchmark.say(f"{name}: prompt of {n}")
                    bench.prompt(n)
                for n in cells:
                    benchmark.say(f"{name}: decode after {n}")
                    bench.decode(n)
            rows = bench.rows
    print(json.dumps(benchmark.as_json(rows)) if args.json else benchmark.table(rows))
    if not all(row.bits_equal for row in rows):
        raise Refused(f"{name}: the logits differ from the reference's")
    return 0


def _view(args, bench):
    """The live view, where it is asked for."""
    if not args.live:
        return nullcontext()
    from bankml.dashboard import Live

    return Live(bench.snapshot, "results, in tokens/s")


def _model(args, folder):
    """(name, path) of what to measure; a shape is written into `folder` first."""
    from bankml import benchmark, models, shapes

    if args.shape:
        name, shape, wtype = shapes.parse(args.shape)
        benchmark.say(f"writing {name} with random weights")
        path = folder / "model.gguf"
        shapes.write_model(path, shape, wtype)
        return name, path
    path = models.resolve(args.model) if args.model else models.default_model()
    return path.stem, path
