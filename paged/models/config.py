"""One description of a decoder of the Llama family; its members differ in data, not in code."""

import math
from dataclasses import dataclass, field

from paged.models.rope import RopeConfig
from paged.spec import AttentionSpec


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
        windows: per layer, how many last keys a token sees; None sees all. Empty: all None.
        qkv_bias: whether query, key and value projections add a bias.
        output_bias: whether the attention's output projection adds a bias.
        mlp_bias: whether the three MLP projections add a bias.
        qk_norm: whether each query and key head is RMS-normed before its rotation (Qwen3).
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
    windows: tuple[int | None, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")
        if not (math.isfinite(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ValueError(
                f"rms_norm_eps: got {self.rms_norm_eps!r}, expected a finite number of at least 0"
            )
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
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What each layer asks of attention."""
        return tuple(
            AttentionSpec(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                scale=self.head_dim**-0.5,
                window=window,
            )
            for window in self.windows
        )
