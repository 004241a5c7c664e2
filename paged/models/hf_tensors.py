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
    # What Llama calls the norm behind attention is the one before the MLP; Gemma has both.
    norms = (
        {
            "attention_norm": "input_layernorm",
            "attention_post_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_post_norm": "post_feedforward_layernorm",
        }
        if config.post_norms
        else {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    )
    table: dict[ParameterPath, Parameter] = {
        (ours, "weight"): Parameter((Tensor(f"{prefix}{theirs}.weight", (hidden,)),))
        for ours, theirs in norms.items()
    }
    if config.has_sinks:
        table["attention", "sinks"] = Parameter((Tensor(attention + "sinks", (config.num_heads,)),))
    if config.experts is not None:
        table |= _experts_table(config, config.experts.num_experts, mlp)
    if config.qk_norm:
        for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            tensor = Tensor(f"{attention}{theirs}.weight", (dim,))
            table["attention", ours, "weight"] = Parameter((tensor,))

    # (path, whether it has a bias, in features, [(projection, out features)])
    qkv = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]
    products = [
        (("attention", "qkv"), config.qkv_bias, hidden, qkv),
        (("attention", "output"), config.output_bias, queries, [("o_proj", hidden)]),
    ]
    if config.experts is None:
        gate_up = [("gate_proj", wide), ("up_proj", wide)]
        products += [
            (("mlp", "gate_up"), config.mlp_bias, hidden, gate_up),
            (("mlp", "down"), config.mlp_bias, wide, [("down_proj", hidden)]),
        ]
    for path, bias, features, projections in products:
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


def _experts_table(config: ModelConfig, count: int, prefix: str) -> dict[ParameterPath, Parameter]:
    """gpt-oss's: all experts in one tensor, [in, out] already; only the router is transposed."""
    hidden, wide = config.hidden_size, config.intermediate_size
    stored = {
        ("router", "bias"): Tensor(prefix + "router.bias", (count,)),
        ("experts", "gate_up"): Tensor(prefix + "experts.gate_up_proj", (count, hidden, 2 * wide)),
        ("experts", "gate_up_bias"): Tensor(
            prefix + "experts.gate_up_proj_bias", (count, 2 * wide)
        ),
        ("experts", "down"): Tensor(prefix + "experts.down_proj", (count, wide, hidden)),
        ("experts", "down_bias"): Tensor(prefix + "experts.down_proj_bias", (count, hidden)),
    }
    router = Tensor(prefix + "router.weight", (count, hidden))
    return {
        ("mlp", "router", "kernel"): Parameter((router,), transposed=True),
        **{("mlp", *path): Parameter((tensor,)) for path, tensor in stored.items()},
    }
