"""The OpenCL drivers that tests run on, none of them a card: PoCL and Mesa's rusticl, each a device on the CPU.

The PoCL of the wheel builds nothing on CPUs newer than its compiler ("unknown target CPU 'generic'"); Debian's
pocl-opencl-icd does. So a driver stands for the first of its devices that builds the kernels.
"""

import functools
import os
from pathlib import Path

import pytest

os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")  # read when the drivers are loaded

DRIVERS = {"pocl": "pip's pyopencl[pocl] or Debian's pocl-opencl-icd", "rusticl": "Debian's mesa-opencl-icd"}


@functools.cache
def _found(word: str):
    from bankml.gpu import devices, opencl
    from bankml.gpu.program import Program

    cl, why = opencl.load(), "no such device"
    for device in devices.listing().devices:
        if device.answers_to(word):
            try:
                context = cl.Context([device.handle])
                Program(context, device.handle)
                return device, context
            except cl.Error as error:
                why = str(error)
    return why, None


def driver(word: str):
    """(Device, cl.Context) of a driver; where there is none, CI fails and others skip."""
    device, context = _found(word)
    if context is None:
        complaint = f"needs {word} ({DRIVERS[word]}): {device}"
        pytest.fail(complaint) if os.environ.get("CI") else pytest.skip(complaint)
    return device, context


def vendors(word: str, folder: Path) -> dict[str, str]:
    """Environment in which a process sees this driver alone: for commands that are run as a user runs them."""
    libraries = {"pocl": "libpocl.so.2", "rusticl": "libRusticlOpenCL.so.1"}
    installed = Path(f"/etc/OpenCL/vendors/{word}.icd")
    name = installed.read_text().strip() if installed.is_file() else libraries[word]
    path = folder / f"{word}.icd"
    path.write_text(name + "\n")
    return {"OCL_ICD_VENDORS": str(path), "RUSTICL_ENABLE": "llvmpipe"}
