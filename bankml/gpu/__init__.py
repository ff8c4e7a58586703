"""Cards, through OpenCL: matrix products whose bits are those of the CPU kernels. Nothing here imports bankml/cpu."""
