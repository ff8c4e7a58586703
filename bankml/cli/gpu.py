"""`bankml gpu`: the OpenCL devices, which are used and why not the others; with --verify, the self-test on each."""

import json
import sys

from bankml import environment
from bankml.cli import flags
from bankml.errors import Refused


def arguments(parser):
    """What the command takes."""
    parser.add_argument(
        "--verify", action="store_true", help="run the self-test on each card that is used; exit code 2 if one fails"
    )
    parser.add_argument(
        "--device",
        type=flags.text,
        metavar="WHICH",
        help="devices by index or name, commas between (default: BANKML_GPU, or auto: every card)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: {devices, problem, notes, verified}"
    )


def run(args) -> int:
    """List the devices, or put those that are asked for to the test."""
    from bankml.gpu import devices

    asked = environment.gpu(args.device, "--device") if args.device is not None else environment.gpu()
    found = devices.listing()
    chosen = devices.choose(found, asked)
    for note in found.notes:
        print(f"bankml: a platform does not answer: {note}", file=sys.stderr)
    rows = [(device, devices.why_not(found, device, asked)) for device in found.devices]
    if not args.verify:
        return _list(args.json, found, rows)
    if not chosen:
        reasons = "; ".join(f"{device}: {reason}" for device, reason in rows)
        raise Refused(f"there is no card to verify: {found.problem or reasons}")
    return _verify(args.json, found, rows, chosen)


def _list(as_json, found, rows) -> int:
    if as_json:
        print(json.dumps(_report(found, rows, None)))
        return 0
    for device, reason in rows:
        print(f"{device.index}: {device.name}")
        print(f"   {device.kind} of {device.vendor}; {device.platform}, driver {device.driver}")
        sizes = f"{device.memory / 1e9:.1f} GB, allocations up to {device.largest_allocation / 1e9:.1f} GB"
        print(f"   {sizes}, {device.compute_units} compute units")
        print(
            f"   not used: {reason}"
            if reason
            else "   used, once it has proved itself ('bankml gpu --verify' shows it)"
        )
    if not rows:
        print(f"bankml: {found.problem}", file=sys.stderr)
    return 0


def _verify(as_json, found, rows, chosen) -> int:
    """A line per check and card on stdout, or all of it as JSON at the end."""
    from bankml.cards import expected_on
    from bankml.cpu.pool import Pool

    say = (lambda _: None) if as_json else (lambda line: print(line, flush=True))
    pool = Pool()
    try:
        results = [_prove(device, expected_on(pool), say) for device in chosen]
    finally:
        pool.close()
    failed = [result for result in results if not result["passed"]]
    if as_json:
        print(json.dumps(_report(found, rows, results)))
        return 2 if failed else 0
    if failed:
        raise Refused(*(f"device {result['index']} ({result['name']}) fails: {result['reason']}" for result in failed))
    return 0


def _prove(device, expected, say) -> dict:
    """The self-test of one device; a card that passes need not prove itself again when a model is opened."""
    import time

    from bankml.blocks import RUNNABLE
    from bankml.cpu.compile import source_digest
    from bankml.gpu import canary, opencl, verdicts

    say(str(device))
    cl, habits = opencl.load(), {}
    try:
        context = cl.Context([device.handle])
        verdict = canary.prove(device, context, expected, report=lambda check: say(f"   {check}"))
        habits = canary.habits(device, context) if verdict.program else {}
    except cl.Error as error:
        verdict = canary.failed(device, error)
        say(f"   {verdict.checks[-1]}")
    keys = [verdicts.key(device, wtype, source_digest()) for wtype in RUNNABLE]
    if verdict.program:
        for key in keys:
            verdicts.write(key, device, verdict.program.software_fma)
        say(f"   passed in {verdict.seconds:.1f} s; " + ", ".join(f"{name} {how}" for name, how in habits.items()))
    else:
        for key in keys:
            verdicts.forget(key)
        say("   failed: this card will not be used")
    return {
        "index": device.index,
        "name": device.name,
        "vendor": device.vendor,
        "platform": device.platform_version,
        "driver": device.driver,
        "date": time.strftime("%Y-%m-%d"),
        "passed": verdict.program is not None,
        "reason": verdict.reason,
        "build": canary.BUILDS[verdict.program.software_fma] if verdict.program else None,
        "seconds": round(verdict.seconds, 3),
        "checks": [{"build": c.build, "name": c.name, "ok": c.ok, "fault": c.fault} for c in verdict.checks],
        "habits": habits,
    }


def _report(found, rows, verified) -> dict:
    return {
        "devices": [
            {
                "index": device.index,
                "name": device.name,
                "vendor": device.vendor,
                "platform": device.platform,
                "platform_version": device.platform_version,
                "driver": device.driver,
                "type": device.kind,
                "memory_bytes": device.memory,
                "largest_allocation_bytes": device.largest_allocation,
                "compute_units": device.compute_units,
                "used": not reason,
                "reason": reason,
            }
            for device, reason in rows
        ],
        "problem": found.problem,
        "notes": found.notes,
        "verified": verified,
    }
