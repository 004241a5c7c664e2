"""The smallest step that is no mean and no copy, worked by hand, for backends that take JAX arrays.

One head of width 2, scale 1. The query (1, 0) meets keys (0, 0) and (ln 3, 0): weights 1/4 and 3/4,
so that values 4 and 8 give 1 + 6 = 7, and the log-sum-exp is ln 4.
"""

import jax.numpy as jnp
import numpy as np

from paged import AttentionSpec, MetadataBuilder, resolve


def check_two_keys(backend, **features):
    """Write and attend by a listed backend, and compare; features are those that change nothing."""
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0, **features)
    attention = resolve(spec, layout="flash_attn", backend=backend)
    cache = attention.allocate(num_blocks=3, block_size=1)
    key = jnp.array([[[0.0, 0.0]], [[np.log(3.0), 0.0]]])
    value = jnp.array([[[4.0, 0.0]], [[8.0, 0.0]]])
    cache = attention.write(cache, key, value, jnp.array([2, 1], jnp.int32))
    step = MetadataBuilder(1).build(
        [(0, 1)], block_table=np.array([[2, 1]], np.int32), num_computed=np.array([1])
    )
    query = jnp.zeros((step.metadata.num_tokens, 1, 2)).at[0, 0, 0].set(1.0)
    out, lse = attention.attend(query, cache, step.metadata)
    np.testing.assert_allclose(out[0, 0], [7.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(lse[0, 0], np.log(4.0), rtol=1e-6)
