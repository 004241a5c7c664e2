"""DeepSeek V2 and V3: latent attention (MLA) and mixtures of experts, in flax nnx.

To the rest of the package a layer is an `AttentionSpec` with one KV head whose values are the first
entries of its keys; the latent layouts, backends and engine know no more of it than that.
"""

from paged.models.deepseek.config import DeepseekConfig, RouterConfig
from paged.models.deepseek.cost import Cost, absorbed_cost, expanded_cost, prefers_expanded
from paged.models.deepseek.model import DeepseekTransformer

__all__ = [
    "Cost",
    "DeepseekConfig",
    "DeepseekTransformer",
    "RouterConfig",
    "absorbed_cost",
    "expanded_cost",
    "prefers_expanded",
]
