"""Faults of the Pallas TPU kernels, tried by their interpreter.

Some are of arithmetic, as in every backend; some only a kernel can have: a copy that is not waited
for, a buffer refilled while it is read, a piece of the neighbour, a state never cleared.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_of = partial(Mutant, layout="tpu_packed")
_PACKAGE = "paged.backends.pallas_tpu"
_decode = partial(_of, module=f"{_PACKAGE}.decode")
_stream = partial(_of, module=f"{_PACKAGE}.stream")
_cells = partial(_of, module=f"{_PACKAGE}.cells")
_state = partial(_of, module=f"{_PACKAGE}.state")
_rows = partial(_of, module=f"{_PACKAGE}.rows")
_tiles = partial(_of, module=f"{_PACKAGE}.tiles")
_ragged = partial(_of, module=f"{_PACKAGE}.ragged")
_write = partial(_of, module=f"{_PACKAGE}.write")
_products = partial(_of, module=f"{_PACKAGE}.products")

_DECODES = ("batch/decode_only", "batch/mixed")

MUTANTS: tuple[Mutant, ...] = (
    _decode(
        "last key dropped",
        "mask",
        before="jnp.where(held.count > 0, position + 1 - start, 0)",
        after="jnp.where(held.count > 0, position - start, 0)",
        likely=_DECODES,
    ),
    _decode(
        "one key too many",
        "mask",
        before="jnp.where(held.count > 0, position + 1 - start, 0)",
        after="jnp.where(held.count > 0, position + 2 - start, 0)",
        likely=_DECODES,
    ),
    _decode(
        "a piece that is not in use counts",
        "mask",
        before="jnp.where(held.count > 0, position + 1 - start, 0)",
        after="position + 1 - start",
        likely=_DECODES,
    ),
    _decode(
        "window of a decode one too long",
        "window",
        before="position + 1 - plan.spec.window - start",
        after="position - plan.spec.window - start",
        likely=("window/decode", "window/*"),
    ),
    _decode(
        "window of a decode one too short",
        "window",
        before="position + 1 - plan.spec.window - start",
        after="position + 2 - plan.spec.window - start",
        likely=("window/decode", "window/*"),
    ),
    _decode(
        "values of unseen tokens not zeroed",
        "memory",
        before="products = mixture(plan, new.weights, piece.buffer, step, piece.seen)",
        after="products = mixture(plan, new.weights, piece.buffer, step, None)",
        likely=_DECODES,
    ),
    _decode(
        "earlier output not rescaled",
        "softmax",
        before="state.out[at] = state.out[at] * kept[:, :1] + out * joined[:, :1]",
        after="state.out[at] = state.out[at] + out * joined[:, :1]",
    ),
    _decode(
        "a piece's sum joins unscaled",
        "softmax",
        before="state.total[at] * kept + new.total * joined",
        after="state.total[at] * kept + new.total",
    ),
    _decode(
        "largest logit forgotten",
        "softmax",
        before="            state.peak[at] = peak\n",
        after="",
        likely=("lengths/*",),
    ),
    _decode(
        "every piece starts where its sequence starts",
        "blocks",
        before="(walk.start_block[held.item] + held.offset) * plan.block_size",
        after="walk.start_block[held.item] * plan.block_size",
        likely=("lengths/*",),
    ),
    _decode(
        "query of the group's first item for all",
        "rows",
        before="logits(plan, query[piece.item, step]",
        after="logits(plan, query[0, step]",
        likely=_DECODES,
    ),
    _stream(
        "chunk not waited for",
        "memory",
        before="                    self._wait_blocks(target, slot, self.piece_blocks)\n",
        after="                    pass\n",
        likely=("lengths/*", *_DECODES),
    ),
    _stream(
        "blocks that do not fill a piece are not waited for",
        "memory",
        before="one, None)\n\n            lax.fori_loop(0, self.pieces, one_piece, None)",
        after="lambda i, _: None, None)\n\n            lax.fori_loop(0, self.pieces, one_piece, "
        "None)",
        likely=_DECODES,
    ),
    _stream(
        "both chunks in one buffer",
        "memory",
        before="slot = jnp.bitwise_and(number, 1)",
        after="slot = jnp.bitwise_and(number, 0)",
        likely=("lengths/*", *_DECODES),
    ),
    _stream(
        "table row of the neighbour",
        "blocks",
        before="row = self.walk.sequence[item] * self.table_width",
        after="row = jnp.maximum(self.walk.sequence[item] - 1, 0) * self.table_width",
        likely=_DECODES,
    ),
    _stream(
        "blocks of a window counted from the sequence's start",
        "window",
        before="return row + self.walk.start_block[item] + offset",
        after="return row + offset",
    ),
    _stream(
        "second block of a piece is the first again",
        "blocks",
        before="self._start_blocks(entry + index, target + index, slot, 1)",
        after="self._start_blocks(entry, target + index, slot, 1)",
        likely=_DECODES,
    ),
    _stream(
        "pieces of a long sequence all begin where the chunk begins",
        "blocks",
        before="Piece(item, offset + piece * self.piece_blocks, self.piece_blocks)",
        after="Piece(item, offset, self.piece_blocks)",
        likely=("lengths/*",),
    ),
    _cells(
        "keys and values swapped",
        "keys_and_values",
        before="row = 2 * head + kind",
        after="row = 2 * head + 1 - kind",
    ),
    _cells(
        "keys and values of the neighbouring head",
        "heads",
        before="row = 2 * head + kind",
        after="row = 2 * (head ^ 1) + kind",
    ),
    _cells(
        "sign of int8 lost",
        "quantised",
        before="lax.shift_right_arithmetic(left, jnp.int32(24))",
        after="lax.shift_right_logical(left, jnp.int32(24))",
    ),
    _cells(
        "small floats flushed to zero",
        "quantised",
        before="jnp.where(whole < (1 << mantissa_bits), subnormal, normal)",
        after="normal",
        likely=("quantised/float8*", "quantised/*"),
    ),
    _state(
        "state of the item before",
        "softmax",
        before="        self.out[...] = jnp.zeros_like(self.out)\n",
        after="        pass\n",
        likely=_DECODES,
    ),
    _state(
        "a row without keys measured from -inf",
        "softmax",
        before="origin = jnp.where(peak == -jnp.inf, 0.0, peak)",
        after="origin = peak",
        likely=_DECODES,
    ),
    _rows(
        "lse to base 2",
        "lse",
        before="top * jnp.float32(1 / LOG2_E) + jnp.log(denominator)",
        after="top + jnp.log2(denominator)",
    ),
    _rows(
        "a sink joins the numerator too",
        "sinks",
        before="            share = share * kept[:, :1]\n",
        after="            share = share * kept[:, :1] + jnp.exp2(sink - top)[:, :1]\n",
    ),
    _rows(
        "sink forgotten in the denominator",
        "sinks",
        before="denominator = denominator * kept + jnp.exp2(sink - top)",
        after="denominator = denominator * kept",
    ),
    _rows(
        "V scale left out",
        "quantised",
        before="share = state.peak[at], state.total[at], rows.out_factor[step]",
        after="share = state.peak[at], state.total[at], jnp.ones_like(rows.out_factor[step])",
    ),
    _ragged(
        "V scale used for K",
        "quantised",
        before="per_head(cache.k_scale) * jnp",
        after="per_head(cache.v_scale) * jnp",
    ),
    _ragged(
        "scale * 1.01",
        "scale",
        before="jnp.float32(spec.scale * unit)",
        after="jnp.float32(1.01 * spec.scale * unit)",
    ),
    _tiles(
        "results of tokens of no sequence kept",
        "rows",
        before="jnp.where(is_query[..., None], heads[tiles.home], 0)",
        after="heads[tiles.home]",
        likely=("batch/three_of_eight", "batch/*"),
    ),
    _tiles(
        "first block of a window one too late",
        "window",
        before="jnp.maximum(first - (spec.window - 1), 0) // block_size",
        after="(jnp.maximum(first - (spec.window - 1), 0) + block_size - 1) // block_size",
    ),
    _products(
        "soft cap * 1.1",
        "soft_cap",
        before="jnp.float32(plan.spec.soft_cap * LOG2_E)",
        after="jnp.float32(1.1 * plan.spec.soft_cap * LOG2_E)",
    ),
    _products(
        "weights times values summed in bfloat16",
        "precision",
        before="preferred_element_type=jnp.float32,\n    )\n\n\ndef own_columns",
        after="preferred_element_type=jnp.bfloat16,\n    ).astype(jnp.float32)\n\n\n"
        "def own_columns",
    ),
    _write(
        "slot -1 writes the last slot",
        "slots",
        before="slot.astype(jnp.uint32) < data.shape[0]",
        after="slot < data.shape[0]",
    ),
    _write(
        "slot + 1",
        "slots",
        before="make_async_copy(cells.at[first + token], data.at[slot], semaphore).start()",
        after="make_async_copy(cells.at[first + token], data.at[jnp.minimum(slot + 1, "
        "data.shape[0] - 1)], semaphore).start()",
    ),
    _write(
        "last copies of a write not waited for",
        "slots",
        before="    lax.fori_loop(0, lax.rem(in_flight, _GROUP), lambda *_: wait_for(1), None)\n",
        after="",
    ),
)
"""Each on `tpu_packed`."""
