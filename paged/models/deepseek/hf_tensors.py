"""Where each parameter of a `DeepseekTransformer` lies in a Hugging Face checkpoint."""

import re

from paged.models.deepseek.config import DeepseekConfig
from paged.models.hf_tensors import Parameter, ParameterPath, Tensor

Table = dict[ParameterPath, Parameter]


def parameter_table(config: DeepseekConfig) -> Table:
    """Every parameter of `DeepseekTransformer(config)`, by its path in the flat nnx state."""
    hidden, vocab = config.hidden_size, config.vocab_size
    table: Table = {
        ("embedding", "weight"): _plain("model.embed_tokens.weight", vocab, hidden),
        ("final_norm", "weight"): _plain("model.norm.weight", hidden),
    }
    if not config.tie_word_embeddings:
        table["head", "kernel"] = _matrix(("lm_head", vocab), features=hidden)
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}."
        is_dense = i < config.num_dense_layers
        layer: Table = {
            ("attention_norm", "weight"): _plain(prefix + "input_layernorm.weight", hidden),
            ("mlp_norm", "weight"): _plain(prefix + "post_attention_layernorm.weight", hidden),
            **_attention_table(config, prefix + "self_attn."),
            **(_mlp_table(config, prefix) if is_dense else _experts_table(config, prefix)),
        }
        for path, parameter in layer.items():
            table["layers", i, *path] = parameter
    return table


def is_beyond(name: str, config: DeepseekConfig) -> bool:
    """Whether a tensor is of a layer behind the last: those predict further tokens (V3)."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= config.num_layers


def _plain(name: str, *shape: int) -> Parameter:
    return Parameter((Tensor(name, shape),))


def _matrix(*projections: tuple[str, int], features: int) -> Parameter:
    """Projections (name, out features) of the same input, side by side."""
    return Parameter(
        tuple(Tensor(f"{name}.weight", (out, features)) for name, out in projections),
        transposed=True,
    )


def _attention_table(config: DeepseekConfig, prefix: str) -> Table:
    hidden, heads, rank = config.hidden_size, config.num_heads, config.kv_lora_rank
    queries, values = heads * config.qk_head_dim, heads * config.v_head_dim
    up = heads * (config.qk_nope_head_dim + config.v_head_dim)
    table: Table = {}

    def linear(ours: str, theirs: str, features: int, out: int, *, bias: bool = False) -> None:
        name = prefix + theirs
        table["attention", ours, "kernel"] = _matrix((name, out), features=features)
        if bias:
            table["attention", ours, "bias"] = _plain(f"{name}.bias", out)

    bias = config.attention_bias
    if config.q_lora_rank is None:
        linear("query", "q_proj", hidden, queries)
    else:
        linear("query_down", "q_a_proj", hidden, config.q_lora_rank, bias=bias)
        table["attention", "query_norm", "weight"] = _plain(
            prefix + "q_a_layernorm.weight", config.q_lora_rank
        )
        linear("query", "q_b_proj", config.q_lora_rank, queries)
    linear("latent_down", "kv_a_proj_with_mqa", hidden, config.latent_dim, bias=bias)
    table["attention", "latent_norm", "weight"] = _plain(prefix + "kv_a_layernorm.weight", rank)
    table["attention", "up"] = _plain(prefix + "kv_b_proj.weight", up, rank)
    linear("output", "o_proj", values, hidden, bias=bias)
    return table


def _gated(path: tuple[str, ...], prefix: str, hidden: int, wide: int) -> Table:
    both = (prefix + "gate_proj", wide), (prefix + "up_proj", wide)
    return {
        (*path, "gate_up", "kernel"): _matrix(*both, features=hidden),
        (*path, "down", "kernel"): _matrix((prefix + "down_proj", hidden), features=wide),
    }


def _mlp_table(config: DeepseekConfig, prefix: str) -> Table:
    return _gated(("mlp",), prefix + "mlp.", config.hidden_size, config.intermediate_size)


def _experts_table(config: DeepseekConfig, prefix: str) -> Table:
    hidden, wide, count = (
        config.hidden_size,
        config.moe_intermediate_size,
        config.router.num_experts,
    )
    prefix += "mlp."
    experts = [f"{prefix}experts.{e}." for e in range(count)]
    table: Table = {
        ("mlp", "router", "kernel"): _matrix((prefix + "gate", count), features=hidden),
        ("mlp", "experts", "gate_up"): Parameter(
            tuple(
                Tensor(f"{expert}{name}.weight", (wide, hidden))
                for expert in experts
                for name in ("gate_proj", "up_proj")
            ),
            transposed=True,
            stacked=count,
        ),
        ("mlp", "experts", "down"): Parameter(
            tuple(Tensor(f"{expert}down_proj.weight", (hidden, wide)) for expert in experts),
            transposed=True,
            stacked=count,
        ),
        **_gated(
            ("mlp", "shared"),
            prefix + "shared_experts.",
            hidden,
            config.shared_mlp.intermediate_size,
        ),
    }
    if config.router.method == "noaux_tc":
        table["mlp", "router", "bias"] = _plain(prefix + "gate.e_score_correction_bias", count)
    return table
