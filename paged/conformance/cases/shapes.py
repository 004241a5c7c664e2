"""Cases about sizes."""

from collections.abc import Iterator

from paged.conformance.case import Case
from paged.conformance.cases.setups import SMALL


def shapes() -> Iterator[Case]:
    """Heads, widths and block sizes."""
    for group in (1, 2, 4, 5, 6, 7, 8, 16):
        yield Case(
            f"heads/group_{group}",
            f"{group} query heads a KV head",
            (9,),
            ("2",),
            SMALL.but(group_size=group),
            one_dtype=group != 4,
        )
    for group in (1, 5, 48):
        yield Case(
            f"heads/{group}_to_1",
            f"{group} query heads on the only KV head",
            (9,),
            ("2",),
            SMALL.but(num_kv_heads=1, group_size=group),
            one_dtype=True,
        )
    yield Case(
        "heads/three_kv_heads",
        "heads that are no power of two",
        (9,),
        ("2",),
        SMALL.but(num_kv_heads=3),
        one_dtype=True,
    )
    for head_dim in (64, 80, 96, 128, 192, 256):
        yield Case(
            f"head_dim/{head_dim}",
            f"rows of {head_dim}",
            (9,),
            ("2",),
            SMALL.but(head_dim=head_dim),
            one_dtype=head_dim != 128,
        )
    for head_dim in (8, 33):
        yield Case(
            f"head_dim/{head_dim}",
            f"rows of {head_dim}: served or refused",
            (9, 25),
            ("claim",),
            SMALL.but(head_dim=head_dim),
            one_dtype=True,
        )
    for block_size in (1, 5, 8, 16, 32, 64, 128):
        width = -(-48 // block_size)
        yield Case(
            f"block_size/{block_size}",
            f"blocks of {block_size}",
            (10,),
            ("2",),
            SMALL.but(block_size=block_size, table_width=width, num_blocks=8 * width),
            one_dtype=block_size != 32,
        )
    yield Case(
        "block_size/manager_32_kernel_16",
        "the manager's blocks are twice the kernel's",
        (11,),
        ("13",),
        SMALL.but(manager_ratio=2),
    )
    yield Case(
        "block_size/manager_64_kernel_16",
        "the manager's blocks are four times the kernel's",
        (11,),
        ("13",),
        SMALL.but(manager_ratio=4, table_width=2),
        one_dtype=True,
    )
