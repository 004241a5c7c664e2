"""One description of a decoder of the Llama family; its members differ in data, not in code.

Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3, gpt-oss.
"""

from dataclasses import dataclass, field

from paged.models.checks import is_finite, require_counts, require_known
from paged.models.layers import ACTIVATIONS
from paged.models.rope import RopeConfig
from paged.spec import AttentionSpec

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GptOssForCausalLM": "gpt_oss",
}
"""Hugging Face classes of this family, and their model_type."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of gpt-oss, in place of a dense MLP; `intermediate_size` is one expert's width.

    Attributes:
        num_experts: experts to choose from.
        experts_per_token: how many a token goes to.
        swiglu_alpha: factor inside the gate's sigmoid.
        swiglu_limit: what the gate is clamped to from above, and up from both sides.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    num_experts: int
    experts_per_token: int
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    def __post_init__(self) -> None:
        require_counts(self, "num_experts", "experts_per_token")
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token: got {self.experts_per_token}, expected at most "
                f"num_experts {self.num_experts}"
            )
        for name in ("swiglu_alpha", "swiglu_limit"):
            if not (is_finite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, expected a positive finite number"
                )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that decides a Llama-family model's arithmetic, and the shapes of its weights.

    `paged.models.hf_config` reads it from a Hugging Face `config.json` and writes it back.

    Attributes:
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: width of a head; even. `num_heads * head_dim` need not equal `hidden_size`.
        architecture: the Hugging Face class that this is saved as.
        max_position_embeddings: longest context the model is meant for. Nothing is cut at it.
        rms_norm_eps: added to the mean square of every norm.
        rope: rotary position embedding.
        window_rope: that of layers with a window; None if it is the same (Gemma 3's is not).
        windows: per layer, how many last keys a token sees; None sees all. Empty: all None.
        query_pre_attn_scalar: the logits are divided by its root; None for `head_dim`.
        soft_cap: of the attention's logits, as in `AttentionSpec` (Gemma 2).
        final_soft_cap: the same for the model's logits.
        has_sinks: whether each head has a logit of its own in the denominator (gpt-oss).
        qkv_bias: whether query, key and value projections add a bias.
        output_bias: whether the attention's output projection adds a bias.
        mlp_bias: whether the three MLP projections add a bias.
        qk_norm: whether each query and key head is RMS-normed before its rotation (Qwen3).
        activation: what the MLP's gate goes through, one of `ACTIVATIONS`.
        experts: in place of the MLP; they bring a gate of their own. None for a dense MLP.
        norm_offset: what a norm adds to its weights; 1 for Gemma, which keeps them around 0.
        post_norms: whether what attention and MLP give is normed before it is added (Gemma).
        scale_embedding: whether embeddings are multiplied by the root of `hidden_size` (Gemma).
        tie_word_embeddings: whether the logits use the embedding itself.
        bos_token_id: token that starts a text, if any.
        eos_token_ids: tokens that end a text; may be empty.

    Raises:
        ValueError: a field out of range, naming the field, its value and what is accepted.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    architecture: str = "LlamaForCausalLM"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    window_rope: RopeConfig | None = None
    windows: tuple[int | None, ...] = ()
    query_pre_attn_scalar: int | None = None
    soft_cap: float | None = None
    final_soft_cap: float | None = None
    has_sinks: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    experts: ExpertsConfig | None = None
    norm_offset: float = 0.0
    post_norms: bool = False
    scale_embedding: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_counts(
            self,
            *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"),
            *("num_kv_heads", "head_dim", "max_position_embeddings"),
        )
        if self.query_pre_attn_scalar is not None:
            require_counts(self, "query_pre_attn_scalar")
        if not (is_finite(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ValueError(
                f"rms_norm_eps: got {self.rms_norm_eps!r}, expected a finite number of at least 0"
            )
        if not is_finite(self.norm_offset):
            raise ValueError(f"norm_offset: got {self.norm_offset!r}, expected a finite number")
        require_known(self, "architecture", ARCHITECTURES)
        require_known(self, "activation", ACTIVATIONS)
        for name in ("soft_cap", "final_soft_cap"):
            value = getattr(self, name)
            if value is not None and not (is_finite(value) and value > 0):
                raise ValueError(f"{name}: got {value!r}, expected a positive number or None")
        if self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}, expected an even number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: got {self.num_heads}, expected a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_layers)
        if len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows: got {len(self.windows)} entries, expected one per layer, "
                f"{self.num_layers}"
            )

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotary embedding of each layer."""
        local = self.window_rope or self.rope
        return tuple(self.rope if window is None else local for window in self.windows)

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What each layer asks of attention."""
        return tuple(
            AttentionSpec(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                scale=(self.query_pre_attn_scalar or self.head_dim) ** -0.5,
                window=window,
                soft_cap=self.soft_cap,
                has_sinks=self.has_sinks,
            )
            for window in self.windows
        )
