"""Every kernel, run by a process that oclgrind watches: python -m tests.gpu.under_oclgrind RESULTS [SOURCE].

Rows and columns that fill no whole group, in both builds; the results go to an .npz file, a name for each. SOURCE
holds other kernels, to see whether a mistake in them is noticed. Nothing here loads Numba.
"""

import sys
from pathlib import Path

import numpy as np

from bankml.blocks import F16, RUNNABLE, TYPES
from bankml.gpu import canary, canary_data, devices, opencl
from bankml.gpu.program import Program

ROWS, COLUMNS = 11, 5


def cases(wtype):
    """Small cases of a type, and whether they go as a tile."""
    case = canary_data.shape_case(wtype, ROWS + 1, 256, COLUMNS)
    yield "tile", case, case.weights if wtype == F16 else case.weights[:ROWS], True
    yield "columns", case, case.weights[:ROWS], False
    yield "column", case._replace(activation=tuple(a[:1] for a in case.activation)), case.weights[:ROWS], True


def main(results, source=None):
    cl = opencl.load()
    (device,) = [one for one in devices.listing().devices if one.answers_to("oclgrind")]
    context = cl.Context([device.handle])
    queue, found = cl.CommandQueue(context), {}
    text = Path(source).read_text() if source else None
    for software in (False,) if text else canary.BUILDS:
        program = Program(context, device.handle, software, text)
        for wtype in RUNNABLE[:1] if text else RUNNABLE:
            for way, case, weights, tiled in cases(wtype):
                name = f"{TYPES[wtype].name} {way} {software:d}"
                found[name] = canary.run(program, queue, case, weights, tiled)[:, : len(weights)]
    assert canary.habits(device, context)["fma()"] in ("fused", "separate")
    np.savez(results, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
