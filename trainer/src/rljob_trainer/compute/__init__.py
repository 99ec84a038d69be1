"""What ranks and engines share: kernels, dtypes, and errors of memory."""
