"""One description of a DeepSeek V2 or V3 decoder."""

from dataclasses import dataclass, field
from typing import NamedTuple

from paged.models.checks import is_finite, require_counts, require_known
from paged.models.rope import RopeConfig
from paged.spec import AttentionSpec

ARCHITECTURES = {"DeepseekV2ForCausalLM": "deepseek_v2", "DeepseekV3ForCausalLM": "deepseek_v3"}
"""Hugging Face classes of this family, and their model_type."""

ROUTERS = ("greedy", "group_limited_greedy", "noaux_tc")
"""Ways of choosing experts that are implemented, as Hugging Face calls them."""


class MLPConfig(NamedTuple):
    """The shape of one gated MLP.

    Attributes:
        hidden_size: width of the residual stream.
        intermediate_size: width of the gate.
        num_layers: decoder layers, for the initial weights.
        mlp_bias: whether its projections add a bias.
        activation: what its gate goes through.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    mlp_bias: bool = False
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Which experts a token goes to, and how much each counts.

    Attributes:
        method: one of `ROUTERS`. "greedy" takes the largest of a softmax over the experts,
            "group_limited_greedy" the largest within the groups whose best expert is best, and
            "noaux_tc" scores by a sigmoid, chooses after a bias per expert is added, and takes
            the groups whose two best add up to most.
        num_experts: experts to choose from.
        experts_per_token: how many a token goes to.
        num_groups: the experts are so many groups of neighbours.
        groups_per_token: how many groups a token may choose from.
        normalize: whether the chosen experts' scores are divided by their sum.
        scaling: factor on the weights of the chosen.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    method: str
    num_experts: int
    experts_per_token: int
    num_groups: int = 1
    groups_per_token: int = 1
    normalize: bool = False
    scaling: float = 1.0

    def __post_init__(self) -> None:
        require_known(self, "method", ROUTERS)
        require_counts(self, "num_experts", "experts_per_token", "num_groups", "groups_per_token")
        if self.num_experts % self.num_groups:
            raise ValueError(
                f"num_groups: got {self.num_groups}, expected a divisor of "
                f"num_experts {self.num_experts}"
            )
        if self.groups_per_token > self.num_groups:
            raise ValueError(
                f"groups_per_token: got {self.groups_per_token}, expected at most "
                f"num_groups {self.num_groups}"
            )
        if self.method == "noaux_tc" and self.group_size < 2:
            raise ValueError(
                f"num_groups: got {self.num_groups} for {self.num_experts} experts, expected at "
                "least two experts in a group (noaux_tc adds up a group's two best)"
            )
        if self.experts_per_token > self.groups_per_token * self.group_size:
            raise ValueError(
                f"experts_per_token: got {self.experts_per_token}, expected at most the "
                f"{self.groups_per_token * self.group_size} experts of the groups chosen"
            )
        if not is_finite(self.scaling):
            raise ValueError(f"scaling: got {self.scaling!r}, expected a finite number")

    @property
    def group_size(self) -> int:
        """Experts in a group."""
        return self.num_experts // self.num_groups


@dataclass(frozen=True, slots=True)
class DeepseekConfig:
    """Everything that decides a DeepSeek model's arithmetic, and the shapes of its weights.

    Attributes:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of a dense layer's MLP.
        moe_intermediate_size: width of one expert.
        num_layers: decoder layers.
        num_dense_layers: how many of the first have a dense MLP; the others have experts.
        num_heads: query heads.
        q_lora_rank: width that queries are compressed to; None projects them at once (V2-Lite).
        kv_lora_rank: width of the latent that keys and values are projected from.
        qk_nope_head_dim: entries of a query and a key that are not rotated.
        qk_rope_head_dim: entries that are; a key's are the same for all heads. Even.
        v_head_dim: width of a value.
        router: of the layers with experts.
        num_shared_experts: experts that every token goes to besides.
        architecture: the Hugging Face class that this is saved as.
        max_position_embeddings: longest context the model is meant for. Nothing is cut at it.
        rms_norm_eps: added to the mean square of the layers' norms; the norms of the compressed
            queries and of the latent have 1e-6 whatever it is, as the peers have.
        rope: rotary position embedding.
        rope_interleave: whether neighbours (2i, 2i + 1) turn together, not (i, i + half).
        attention_bias: whether the projections from and to the residual stream add a bias; that
            of uncompressed queries never does.
        tie_word_embeddings: whether the logits use the embedding itself.
        bos_token_id: token that starts a text, if any.
        eos_token_ids: tokens that end a text; may be empty.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_layers: int
    num_dense_layers: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    router: RouterConfig
    num_shared_experts: int = 1
    architecture: str = "DeepseekV3ForCausalLM"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    rope_interleave: bool = True
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_counts(
            self,
            *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"),
            *("num_layers", "num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
            *("v_head_dim", "num_shared_experts", "max_position_embeddings"),
        )
        require_known(self, "architecture", ARCHITECTURES)
        if self.q_lora_rank is not None:
            require_counts(self, "q_lora_rank")
        for name, kind in (("router", RouterConfig), ("rope", RopeConfig)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected a {kind.__name__}")
        if type(self.num_dense_layers) is not int or self.num_dense_layers < 0:
            raise ValueError(
                f"num_dense_layers: got {self.num_dense_layers!r}, expected an integer of at "
                "least 0"
            )
        if self.qk_rope_head_dim % 2:
            raise ValueError(
                f"qk_rope_head_dim: got {self.qk_rope_head_dim}, expected an even number"
            )
        if not (is_finite(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ValueError(
                f"rms_norm_eps: got {self.rms_norm_eps!r}, expected a finite number of at least 0"
            )

    @property
    def qk_head_dim(self) -> int:
        """Width of a query and of an up-projected key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Numbers that a token keeps in each layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on the logits: that of the up-projected width, in both forms of attention.

        Yarn multiplies queries and keys by `yarn_scale(mscale_all_dim)`. The rotated entries get
        their part of it by `RopeConfig.amplitude`; for all of them it is squared into the scale.
        """
        scale = self.qk_head_dim**-0.5
        if self.rope.rope_type == "yarn" and self.rope.mscale_all_dim:
            scale *= self.rope.yarn_scale(self.rope.mscale_all_dim) ** 2
        return scale

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What each layer asks of attention: the absorbed form, over latents."""
        spec = AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=1,
            head_dim=self.latent_dim,
            scale=self.softmax_scale,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
        )
        return (spec,) * self.num_layers

    @property
    def dense_mlp(self) -> MLPConfig:
        """The MLP of a layer without experts."""
        return MLPConfig(self.hidden_size, self.intermediate_size, self.num_layers)

    @property
    def shared_mlp(self) -> MLPConfig:
        """The shared experts, side by side as one MLP."""
        wide = self.moe_intermediate_size * self.num_shared_experts
        return MLPConfig(self.hidden_size, wide, self.num_layers)
