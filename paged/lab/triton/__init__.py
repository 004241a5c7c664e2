"""The Triton kernels, compiled ahead of time for GPUs that are not there, and what came out.

    targets.py    GPUs, and what triton calls them
    grid.py       which shapes are compiled
    launches.py   from a shape to the launch that the backend would make of it
    read.py       counts, from the text of a disassembled kernel
    compiling.py  one launch through triton's compiler; child.py does it in processes of their own
    run.py        cases in, rows out; summary.py puts them together
    baseline.py   rows that must not get worse

What is compiled is what would be launched: the launches are those of
`paged.backends.triton.planning`, with its tiles, warps and stages. Counts are no measurement of
time.
"""
