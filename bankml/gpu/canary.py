"""The oracle that runs on the card: its kernels, as built for production, against the CPU kernels, bit for bit.

A build with the card's own fma() is asked first, then one with the software fma; a card that fails with both is
refused, and the failed check named. What the driver says of itself proves nothing and is not asked.

`expected(wtype, weights, activation) -> float32 (columns, rows)` is the CPU's product, handed in by the caller: weights
uint8 (rows, row bytes), and an activation as in `gpu.program`: int8 quants with float32 scales, or (for F16) float32.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bankml.blocks import F16, RUNNABLE
from bankml.errors import Refused
from bankml.gpu import canary_data, opencl, verdicts
from bankml.gpu.devices import Device
from bankml.gpu.program import OPTIONS, Program, source

UNWRITTEN = 0x7FA5A5A5  # a NaN that no kernel makes
MARGIN = 3  # elements between the columns of a result, which must stay as they were
BUILDS = {False: "fma()", True: "software fma"}


class Check(NamedTuple):
    """One line of the self-test. `fault` is empty where the bits are right."""

    build: str
    name: str
    fault: str

    @property
    def ok(self) -> bool:
        return not self.fault

    def __str__(self):
        return f"{self.build} build: {self.name}: {self.fault or 'ok'}"


@dataclass
class Verdict:
    """Of one device: `program` is the build that passed, None for a refused one; all checks in their order."""

    device: Device
    program: Program | None
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def reason(self) -> str:
        """Which check failed in which build; "" for a card that passed."""
        return "" if self.program else "; ".join(str(check) for check in self.checks if not check.ok)


def prove(
    device: Device,
    context,
    expected: Callable,
    *,
    wtypes=RUNNABLE,
    shapes=canary_data.SHAPES,
    report: Callable[[Check], None] = lambda check: None,
    text: str | None = None,
) -> Verdict:
    """The self-test of one device in its context: the hard cases of each type, then the shapes. Never raises cl.Error.

    report: told of each check as it ends. text: other kernel sources, for tests.
    """
    start, checks = time.monotonic(), []
    for software in BUILDS:
        program = None
        for program, check in _ask(device, context, expected, software, wtypes, shapes, text):  # noqa: B007
            checks.append(check)
            report(check)
        if checks[-1].ok:
            return Verdict(device, program, checks, time.monotonic() - start)
    return Verdict(device, None, checks, time.monotonic() - start)


def failed(device: Device, error) -> Verdict:
    """Of a device that cannot even be opened."""
    return Verdict(device, None, [Check("no", "it opens", f"the driver fails: {_last_line(error)}")])


def admit(device: Device, context, wtype: int, expected: Callable, cpu_version: str) -> Program:
    """The short form before a card takes any work: the hard cases of one weight type, or the verdict kept of them.

    cpu_version: changes with the CPU kernels. Raises Refused with the failed check.
    """
    key = verdicts.key(device, wtype, cpu_version)
    kept = verdicts.read(key)
    if kept is not None:
        try:
            return Program(context, device.handle, kept)
        except opencl.load().Error:
            pass  # the driver has changed its mind: ask anew, and say what it says now
    verdict = prove(device, context, expected, wtypes=(wtype,), shapes=())
    if verdict.program is None:
        raise Refused(f"{device} is refused: {verdict.reason}")
    verdicts.write(key, device, verdict.program.software_fma)
    return verdict.program


def _ask(device, context, expected, software, wtypes, shapes, text) -> Iterator[tuple[Program | None, Check]]:
    """The checks of one build, up to the first that fails."""
    cl, build, program, name = opencl.load(), BUILDS[software], None, "it builds"
    try:
        program = Program(context, device.handle, software, text)
        queue = cl.CommandQueue(context, device.handle)
        yield program, Check(build, name, "")
        for case, ways in _cases(wtypes, shapes):
            name = case.name
            fault = next(filter(None, (_fault(program, queue, case, way, expected) for way in ways)), "")
            yield program, Check(build, name, fault)
            if fault:
                return
    except cl.Error as error:
        yield program, Check(build, name, f"the driver fails: {_last_line(error)}")
    except MemoryError:
        yield program, Check(build, name, "out of memory")


def _cases(wtypes, shapes):
    """Each case with the ways in which it is computed: as tiles, and column by column."""
    for wtype in wtypes:
        for case in canary_data.hard_cases(wtype):
            yield case, (True, False)
    for rows, width in shapes:
        for wtype in wtypes:
            for columns in canary_data.SHAPE_COLUMNS:
                yield canary_data.shape_case(wtype, rows, width, columns), (True,)


def _fault(program, queue, case: canary_data.Case, tiled: bool, expected) -> str:
    """Compute a case on the card and say what is wrong with it, or ""."""
    weights = case.weights
    if case.wtype == F16 and not tiled:
        weights = weights[:-1]  # rows % 4 != 0: the reference, and the CPU with it, goes column by column
    want = expected(case.wtype, weights, case.activation)
    got = run(program, queue, case, weights, tiled)
    wrong = np.argwhere(got[:, : len(weights)].view(np.uint32) != want.view(np.uint32))
    where = "tile" if tiled and case.columns > 1 else "column"
    if len(wrong):
        column, row = wrong[0]
        values = f"{got[column, row]:.9g} instead of {want[column, row]:.9g}"
        return f"{len(wrong)} of {want.size} results of the {where} kernel differ, the first {values} in row {row}"
    if (got[:, len(weights) :].view(np.uint32) != UNWRITTEN).any():
        return f"the {where} kernel writes past its rows"
    return ""


def run(program, queue, case: canary_data.Case, weights: np.ndarray, tiled: bool) -> np.ndarray:
    """A case's product by the card: float32 (columns, rows + MARGIN), the margin as it was. Raises cl.Error."""
    cl = opencl.load()
    flags, context = cl.mem_flags, queue.context
    out = np.full((case.columns, len(weights) + MARGIN), UNWRITTEN, np.uint32)

    def buffer(array):
        return cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(array))

    held = [buffer(weights), *map(buffer, case.activation), buffer(out)]
    product = program.product(
        case.wtype,
        held[0],
        len(weights),
        case.width,
        tuple(held[1:-1]),
        held[-1],
        out_stride=out.shape[1],
        tiled=tiled,
    )
    done = product.enqueue(queue, case.columns)
    cl.enqueue_copy(queue, out, held[-1], wait_for=[done])
    for one in held:
        one.release()
    return out.view(np.float32)


def habits(device: Device, context) -> dict[str, str]:
    """How a card reads a*b+c, fma() and mad(), and whether it keeps denormals: for the report. Raises cl.Error."""
    cl = opencl.load()
    flags = cl.mem_flags
    built = opencl.build(context, device.handle, source("canary.cl"), OPTIONS)
    queue, kernel = cl.CommandQueue(context, device.handle), cl.Kernel(built, "habits")
    given = np.array([1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-11), 1e-40, 1], np.float32)
    seen = np.zeros(4, np.float32)
    buffers = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=array) for array in (given, seen)]
    kernel.set_args(*buffers)
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), None)
    cl.enqueue_copy(queue, seen, buffers[1])
    said = {0.0: "separate", 2.0**-24: "fused"}
    found = dict(zip(("a*b+c", "fma()", "mad()"), (said.get(float(v), "neither") for v in seen), strict=False))
    return {**found, "denormals": "kept" if seen[3] == given[3] else "flushed"}


def _last_line(error) -> str:
    """A driver's error in a line: the compiler's first complaint, if there is one."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)
