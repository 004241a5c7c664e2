"""The kernels, in `triton.language`; one a file, and what they share."""
