"""Matrix products, accumulated in float32."""

import triton
import triton.language as tl


@triton.jit
def product(a, b):
    """`a @ b` of operands of one type; float32 operands are not cut to fewer bits."""
    if a.dtype == tl.float32:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def added_product(a, b, accumulated):
    """`accumulated + a @ b`."""
    if a.dtype == tl.float32:
        return tl.dot(a, b, accumulated, input_precision="ieee")
    else:
        return tl.dot(a, b, accumulated)
