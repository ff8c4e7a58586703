"""The CPU engine: Numba kernels with the reference's float order, at the level that `level.py` finds.

Importing any of it settles the compiler target first, for Numba reads that once.
"""

from bankml.cpu.level import set_compiler_target

set_compiler_target()
