"""What the pool's processes are given in its tests."""

import os
import sys
import time


def double(value):
    return {"found": 2 * value, "process": os.getpid(), "word": os.environ.get("GPU_CHECK_WORD")}


def fail(value):
    raise ValueError(f"no {value}")


def sleep(seconds):
    time.sleep(seconds)
    return {}


def end_at(value, last):
    if value == last:
        print("these were its last words", file=sys.stderr, flush=True)
        os._exit(7)
    return double(value)
