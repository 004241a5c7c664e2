"""Where each parameter of a `Transformer` lies in a Hugging Face checkpoint.

Hugging Face keeps one matrix [out, in] per projection; a `Transformer` keeps fused matrices
[in, out]. The table below is all there is to it, and both loading and saving follow it.
"""

from dataclasses import dataclass
from typing import Any

from paged.models.config import ModelConfig

ParameterPath = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: its name, and its shape as stored there."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """The tensors that make one parameter, side by side along its last axis.

    Attributes:
        tensors: in order.
        transposed: whether each [out, in] tensor lies in the parameter as [in, out].
        stacked: with a number, the tensors are that many groups of equal size, one after another;
            each lies side by side, and the groups are stacked along a new first axis.
    """

    tensors: tuple[Tensor, ...]
    transposed: bool = False
    stacked: int | None = None

    @property
    def groups(self) -> tuple[tuple[Tensor, ...], ...]:
        """The tensors of each entry along the first axis; one group where nothing is stacked."""
        size = len(self.tensors) // (self.stacked or 1)
        starts = range(0, len(self.tensors), size)
        return tuple(self.tensors[start : start + size] for start in starts)


def parameter_table(config: ModelConfig) -> dict[ParameterPath, Parameter]:
    """Every parameter of `Transformer(config)`, by its path in the module's flat nnx state."""
    hidden, vocab = config.hidden_size, config.vocab_size
    table: dict[ParameterPath, Parameter] = {
        ("embedding", "weight"): Parameter((Tensor("model.embed_tokens.weight", (vocab, hidden)),)),
        ("final_norm", "weight"): Parameter((Tensor("model.norm.weight", (hidden,)),)),
    }
    if not config.tie_word_embeddings:
        head = Tensor("lm_head.weight", (vocab, hidden))
        table["head", "kernel"] = Parameter((head,), transposed=True)
    for i in range(config.num_layers):
        for path, parameter in _layer_table(config, f"model.layers.{i}.").items():
            table["layers", i, *path] = parameter
    return table


def _layer_table(config: ModelConfig, prefix: str) -> dict[ParameterPath, Parameter]:
    hidden, wide, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    norms = {
        "attention_norm": Tensor(prefix + "input_layernorm.weight", (hidden,)),
        "mlp_norm": Tensor(prefix + "post_attention_layernorm.weight", (hidden,)),
    }
    table: dict[ParameterPath, Parameter] = {
        (name, "weight"): Parameter((tensor,)) for name, tensor in norms.items()
    }
    if config.qk_norm:
        for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            tensor = Tensor(f"{attention}{theirs}.weight", (dim,))
            table["attention", ours, "weight"] = Parameter((tensor,))

    # (path, whether it has a bias, in features, [(projection, out features)])
    for path, bias, features, projections in (
        (
            ("attention", "qkv"),
            config.qkv_bias,
            hidden,
            [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)],
        ),
        (("attention", "output"), config.output_bias, queries, [("o_proj", hidden)]),
        (("mlp", "gate_up"), config.mlp_bias, hidden, [("gate_proj", wide), ("up_proj", wide)]),
        (("mlp", "down"), config.mlp_bias, wide, [("down_proj", hidden)]),
    ):
        base = attention if path[0] == "attention" else mlp
        table[*path, "kernel"] = Parameter(
            tuple(Tensor(f"{base}{name}.weight", (out, features)) for name, out in projections),
            transposed=True,
        )
        if bias:
            table[*path, "bias"] = Parameter(
                tuple(Tensor(f"{base}{name}.bias", (out,)) for name, out in projections)
            )
    return table
