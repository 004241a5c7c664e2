"""The reader, on listings written by hand."""

import re

import pytest

from paged.lab.bundles import (
    KernelFiles,
    find_loops,
    parse_bundles,
    parse_utilization,
    read_kernel,
    static_trips,
    vmem_use,
)
from paged.lab.dump import read_copies

# Loop 1 is 2..16 and branches back at 12, loop 2 is 4..11 and branches back at 7: four bundles run
# before a branch takes effect. The branch at 3 goes forward. Marks of depth mean nothing.
SCHEDULED = """= control target key start
LB: loop body
PF: predicated region fallthrough
= control target key end

     0   :  { %s0 = inlined_call_operand.hbm [shape: bf16[8,128]] } /* Start region 0 */
   0x1   :  {}
   0x2 LB: > { %s1 = sphi 0, %s9  ;;  %p3 = scmp.ge.s32.totalorder %s1, 4 } /* Start region 90 */
   0x3   : > { %12 = sbr.rel (%p3) target bundleno = 15 (0xf), region = 8 }
   0x4 LB: >> { %4 = dma.hbm_to_vmem [thread:$0]  %s1, 128 /* = dma.no */ } /* Start region 91 */
   0x5   :  {}
   0x6   : >> { %v2 = vadd.f32 %v1, %v1 }
   0x7   : >> { %13 = sbr.rel (!%p4) target bundleno = 4 (0x4), region = 91 }
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   : > { %14 = vst [vmem:[%s1]] %v2 } /* End region 91 */
   0xc   :  { %15 = sbr.rel (!%p5) target bundleno = 2 (0x2), region = 90 }
   0xd   :  {}
   0xe   : >> { %s9 = sadd.s32 1, %s1 }
   0xf PF: > { %5 = vsyncpa [#allocation4], 1 } /* Start region 8 */
  0x10   :  {}
  0x11   :  { %6 = vsyncpa [#allocation4], 1 }
"""
# Regions instead of bundle numbers, and two empty bundles became delays.
ISSUED = re.sub(r"target bundleno = \d+ \(\w+\), region = (\d+)", r"target = $region\1", SCHEDULED)
ISSUED = re.sub(r"   0x[15]   .*\n", "", ISSUED)
UTILIZATION = """== CAPACTIY:
MATMUL, MATPUSH, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    2     2     2     4     2     1     3     3     1     1     2
== UTILIZATION:
0 0 0 0 0 0 0 0 0 0 0
0 2 0 0 0 0 0 0 0 0 2
0 0 0 0 0 0 0 0 0 0 1
0 0 0 0 0 0 3 1 0 0 2
0 0 0 4 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 0 0 1
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 1 0 0
0 0 0 0 0 0 0 0 0 0 1
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 5 2 1
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 0 0 0
0 0 0 0 0 0 0 0 0 0 0
"""


@pytest.fixture
def files(tmp_path):
    texts = {"scheduled": SCHEDULED, "issued": ISSUED, "utilization": UTILIZATION}
    paths = {}
    for name, text in texts.items():
        paths[name] = tmp_path / f"{name}.txt"
        paths[name].write_text(text)
    return KernelFiles("by_hand", **paths)


def test_a_bundle_knows_where_it_jumps():
    for text, empty in ((SCHEDULED, 2), (ISSUED, 0)):
        bundles = parse_bundles(text)
        jumps = {index: bundle.jumps for index, bundle in enumerate(bundles) if bundle.jumps}
        first, second = 1 + (empty > 0), 3 + (empty > 0)
        assert list(jumps.values()) == [(13 + empty,), (second,), (first,)]
    unmarked = parse_bundles(ISSUED.replace("$region8 ", "$region99 "))
    assert sum(len(bundle.jumps) for bundle in unmarked) == 2


def test_loops_nest_and_end_after_the_delay_of_their_branch():
    loops = find_loops(parse_bundles(SCHEDULED))
    assert [(loop.depth, loop.parent, loop.members) for loop in loops] == [
        (0, None, [0, 1, 17]),
        (1, 0, [2, 3, 12, 13, 14, 15, 16]),
        (2, 1, [4, 5, 6, 7, 8, 9, 10, 11]),
    ]


def test_neighbours_are_two_loops():
    text = "".join(
        f"   {index}   :  {{ %1 = sbr.rel (%p1) target bundleno = {target} (0x0), region = 1 }}\n"
        if target is not None
        else f"   {index}   :  {{}}\n"
        for index, target in enumerate([None, 0, *[None] * 5, 6, *[None] * 4])
    )
    loops = find_loops(parse_bundles(text))
    assert [(loop.parent, loop.members) for loop in loops] == [
        (None, []),
        (0, [0, 1, 2, 3, 4, 5]),
        (0, [6, 7, 8, 9, 10, 11]),
    ]


def test_a_kernel_is_counted(files):
    kernel = read_kernel(files)
    assert [loop.scheduled for loop in kernel.loops] == [3, 7, 8]
    assert [loop.issued for loop in kernel.loops] == [2, 7, 7]
    assert (kernel.scheduled, kernel.issued, kernel.fills, kernel.spills) == (18, 16, 1, 2)
    _, outer, inner = kernel.loops
    # 5 stores through one slot; the two matrix pushes fill one bundle.
    assert (outer.bound_slot, outer.bound, outer.has_matmul) == ("VSTORE", 5, True)
    # 3 scalar operations through two slots. The word in the comment is no copy.
    assert (inner.bound_slot, inner.bound, inner.has_matmul) == ("SALU", 2, False)
    assert (outer.copies, inner.copies) == (0, 1)
    # The branch from 3 to 15 takes effect after 7: of its own loop it skips 12, 13 and 14.
    assert [loop.skippable for loop in kernel.loops] == [0, 3, 0]


def test_listings_that_disagree_are_refused(files):
    files.utilization.write_text(UTILIZATION + "0 0 0 0 0 0 0 0 0 0 0\n")
    with pytest.raises(ValueError, match="17 rows for 16 bundles"):
        read_kernel(files)
    files.utilization.write_text(UTILIZATION)
    files.scheduled.write_text(SCHEDULED.replace("bundleno = 4 (0x4)", "bundleno = 9 (0x9)"))
    with pytest.raises(ValueError, match="loops are not those of the schedule"):
        read_kernel(files)


def test_utilization_has_capacity_and_a_row_a_bundle():
    capacity, rows = parse_utilization(UTILIZATION)
    assert (capacity["VALU"], capacity["VSTORE"], len(rows)) == (4, 1, 16)
    assert rows[3]["VLOAD"] == 3


ORIGINAL = """
    loop: start=0, step=1, limit=18
      $region5: #{kernel} parent=1 // loop_body
      loop: start=0, step=1, limit=1
        loop: start=0, step=8, limit=60
      // While loop
        $region32: #{kernel} parent=23 // loop_body
          loop: start=0, step=1, limit=%s40
"""


def test_static_trip_counts_come_from_the_unoptimised_listing():
    # The loop of one trip is straight code by then, and the one in it is a level further out.
    assert static_trips(ORIGINAL, [0, 1, 2, 2, 3]) == (1, 18, 8, None, None)
    # Where the schedule nests otherwise, nothing is known.
    assert static_trips(ORIGINAL, [0, 1, 2]) == (1, None, None)
    assert static_trips("", [0, 1]) == (1, None)
    assert static_trips("", [0]) == (1,)


def test_vmem_is_the_end_of_the_last_allocation():
    listing = """
  #allocation1 [shape = 's32[1]{0}', space=sflag, size = 0x4, offset = 0x900, scoped, tag = 'x']
  #allocation3 [shape = 'f32[256,256]', space=vmem, size = 0x40000, offset = 0, scoped, tag = 'x']
    #allocation4 [shape = 'u8[4096]', space=vmem, size = 0x1000, offset = 0x40000, scoped]
    #allocation5_spill [shape = 'u32[8,128]', space=vmem, size = 0x1000, offset = 0x41000, scoped]
"""
    assert vmem_use(listing) == 0x42000
    assert vmem_use("") == 0


def test_instructions_that_share_a_kernel():
    text = """key:<top-inlining-caller>
ordinal:0
equivalent_hlos[size=0]:
key:add.3
ordinal:1
equivalent_hlos[size=2]:
  add.3
  add.7
"""
    assert read_copies(text) == {"<top-inlining-caller>": (), "add.3": ("add.3", "add.7")}
