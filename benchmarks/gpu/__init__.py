"""`python -m benchmarks.gpu`: on an NVIDIA GPU, are the Triton kernels right, and how fast.

needs.py          which modules there must be
steps.py          what is done, in its order
pool.py           processes that work off tasks within a budget; worker.py is one of them
facts.py          what the machine is
suite.py          the conformance suite, case by case, in these processes
sanitizer.py      NVIDIA's memory checker over small.py
shapes.py         what is timed, as data; problems.py makes it, ours.py and peers.py run it
stopwatch.py      CUDA events around a captured graph, with a cold cache
right.py          a time counts only if the result is right
figures.py        bytes, operations, roofs
targets.py        what the times should reach
show.py           a page of text

The dry form (`--dry`) goes the same way without a GPU, over triton's interpreter.
"""
