"""Which keys a query sees, and what lies under the mask.

Left out, because no valid input tells them from the original:

- `last < 0` not looked at before blocks are counted: -1 // block_size + 1 is 0 already.
- Positions of keys in blocks that are not read left as they are: they lie past every row.
- `blocks` not replaced by 0 where they are not read: column 0 of the table is followed instead,
  a block of the sequence's own or the null block, and all of it is masked.
- The blocks before a window read and masked: slower, and the contract lets padding be read.
"""

from functools import partial

from paged.conformance.mutants.mutant import Mutant

_mutant = partial(Mutant, module="paged.backends.xla.attend")

_CAUSAL = "mask = (key >= 0) & (key <= row)"
_WINDOW = "mask & (key > row - spec.window)"
_FIRST = "position[:, 0] - (spec.window - 1)"
_IS_SEEN = "is_seen = (key_position >= first[:, None]) & (key_position <= last[:, None])"
_ZEROED = "values = jnp.where(is_seen[:, None, :, None], values, 0.0)"

MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "window one key too long",
        "window",
        before=_WINDOW,
        after="mask & (key >= row - spec.window)",
    ),
    _mutant(
        "window one key too short",
        "window",
        before=_WINDOW,
        after="mask & (key > row - spec.window + 1)",
    ),
    _mutant(
        "window ignored",
        "window",
        module="paged.backends.xla.backend",
        before="ragged_attention(query, cache, metadata, spec, sinks)",
        after="ragged_attention(query, cache, metadata, spec.__class__(**{"
        "name: None if name == 'window' else getattr(spec, name) "
        "for name in spec.__dataclass_fields__}), sinks)",
    ),
    _mutant("window not in the mask", "window", before=_WINDOW, after="mask"),
    _mutant(
        "window of a tile starts one key late",
        "window",
        before=_FIRST,
        after="position[:, 0] - (spec.window - 2)",
    ),
    _mutant(
        "window of a tile starts one key early",
        "window",
        before=_FIRST,
        after="position[:, 0] - spec.window",
        likely=("window/8", "window/1", "window/*"),
    ),
    _mutant(
        "window of a tile starts at its last row",
        "window",
        before=_FIRST,
        after="jnp.max(position, axis=1) - (spec.window - 1)",
    ),
    _mutant(
        "window ends before its own key",
        "window",
        before=_WINDOW,
        after="mask & (key > row - spec.window - 1) & (key < row)",
    ),
    _mutant("last key dropped", "mask", before=_CAUSAL, after="mask = (key >= 0) & (key < row)"),
    _mutant(
        "last key dropped of long rows",
        "mask",
        before=_CAUSAL,
        after="mask = (key >= 0) & ((key < row) | (row < 16))",
    ),
    _mutant(
        "one future key seen", "mask", before=_CAUSAL, after="mask = (key >= 0) & (key <= row + 1)"
    ),
    _mutant(
        "no causal mask",
        "mask",
        before=_CAUSAL,
        after="mask = (key >= 0) & (key <= jnp.max(row, axis=1, keepdims=True) + 0 * row)",
    ),
    _mutant("first key dropped", "mask", before=_CAUSAL, after="mask = (key > 0) & (key <= row)"),
    _mutant(
        "first key dropped of long rows",
        "mask",
        before=_CAUSAL,
        after="mask = (key >= (row > 20)) & (key <= row)",
    ),
    _mutant(
        "value of the last key zeroed",
        "mask",
        before="key_position <= last",
        after="key_position < last",
    ),
    _mutant("values not zeroed under the mask", "memory", before=_ZEROED, after="values = values"),
    _mutant(
        "values past the end not zeroed",
        "memory",
        before=_IS_SEEN,
        after="is_seen = key_position >= first[:, None]",
    ),
    _mutant(
        "values of blocks that are not read not zeroed",
        "memory",
        before=_IS_SEEN,
        after="is_seen = key_position <= last[:, None]",
    ),
    _mutant(
        "values zeroed by a product",
        "memory",
        before=_ZEROED,
        after="values = values * is_seen[:, None, :, None]",
    ),
    _mutant(
        "values cleaned of NaN alone",
        "memory",
        before=_ZEROED,
        after="values = jnp.where(jnp.isnan(values), 0.0, values)",
        likely=("memory/inf", "memory/decode_inf", "memory/*"),
    ),
    _mutant(
        "masked logits get a product",
        "memory",
        before="_accumulate(state, jnp.where(mask, logits, -jnp.inf), values)",
        after="_accumulate(state, logits * mask + jnp.where(mask, 0.0, -jnp.inf), values)",
    ),
    _mutant(
        "masked logits get a large negative number",
        "softmax",
        before="_accumulate(state, jnp.where(mask, logits, -jnp.inf), values)",
        after="_accumulate(state, jnp.where(mask, logits, -1e4), values)",
        likely=("logits/opposite", "logits/*"),
    ),
)
