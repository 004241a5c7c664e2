"""Between a Hugging Face `config.json` of DeepSeek V2 or V3 and a `DeepseekConfig`."""

from collections.abc import Collection, Mapping
from typing import Any

from paged.models.deepseek.config import ARCHITECTURES, DeepseekConfig, RouterConfig
from paged.models.hf_architecture import architecture_name, refuse_changed
from paged.models.hf_keys import Keys
from paged.models.hf_rope import read_rope, write_rope

_V2, _V3 = ARCHITECTURES

_METHODS = {_V2: ("greedy", "group_limited_greedy"), _V3: ("noaux_tc",)}
_SCORING = {_V2: "softmax", _V3: "sigmoid"}

# Of training; of how a checkpoint is spread; code that the class itself replaces; and the layers
# that predict further tokens, which are passed over.
_HARMLESS = (
    *("aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "ep_size", "auto_map"),
    *("num_nextn_predict_layers", "num_mtp_layers"),
)


def config_from_hf(
    values: Mapping[str, Any], *, ignore_keys: Collection[str] = ()
) -> DeepseekConfig:
    """The model that a Hugging Face `config.json` describes.

    Args:
        values: the parsed file, as published with the checkpoints or as transformers writes it.
        ignore_keys: keys to pass over that would otherwise be refused as unknown.

    Raises:
        ValueError: an architecture, router, rope type or activation that is not implemented, a
            value missing or out of range, or an unknown key that is not null or false. The key,
            its value and what is supported are named.
    """
    keys = Keys(values)
    name = architecture_name(keys, ARCHITECTURES)
    if keys.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act: got {keys.get('hidden_act')!r}, supported is 'silu'")
    num_heads = keys.count("num_attention_heads")
    rope_dim = keys.count("qk_rope_head_dim")
    qk_dim = keys.count("qk_nope_head_dim") + rope_dim
    # They follow from others; where they are written they must agree.
    for key, accepted in (
        ("num_key_value_heads", (num_heads,)),
        ("head_dim", (rope_dim, qk_dim)),
        ("qk_head_dim", (qk_dim,)),
        ("moe_layer_freq", (1,)),
    ):
        if keys.get(key, accepted[0]) not in accepted:
            listed = " or ".join(str(value) for value in accepted)
            raise ValueError(f"{key}: got {keys.get(key)!r}, supported is {listed}")
    for key in _HARMLESS:
        keys.get(key)
    config = DeepseekConfig(
        architecture=name,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        moe_intermediate_size=keys.integer("moe_intermediate_size"),
        num_layers=keys.num_layers(),
        num_dense_layers=keys.integer("first_k_dense_replace"),
        num_heads=num_heads,
        # Required, so that none is taken for uncompressed queries because a key was lost.
        q_lora_rank=None if keys.require("q_lora_rank") is None else keys.count("q_lora_rank"),
        kv_lora_rank=keys.count("kv_lora_rank"),
        qk_nope_head_dim=keys.count("qk_nope_head_dim"),
        qk_rope_head_dim=rope_dim,
        v_head_dim=keys.count("v_head_dim"),
        router=_read_router(keys, name),
        num_shared_experts=keys.count("n_shared_experts"),
        max_position_embeddings=keys.integer("max_position_embeddings", 2048),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6, low=0),
        rope=read_rope(keys),
        rope_interleave=name == _V2
        or keys.get("rope_interleave") is None
        or keys.flag("rope_interleave"),
        attention_bias=keys.flag("attention_bias"),
        tie_word_embeddings=keys.flag("tie_word_embeddings"),
        bos_token_id=keys.token_id("bos_token_id"),
        eos_token_ids=keys.token_ids("eos_token_id"),
    )
    keys.refuse_unread(ignore_keys)
    return config


def _read_router(keys: Keys, name: str) -> RouterConfig:
    methods = _METHODS[name]
    method = keys.get("topk_method", methods[0])
    if method not in methods:
        raise ValueError(
            f"topk_method: got {method!r}, supported for {name} are {', '.join(methods)}"
        )
    scoring = keys.get("scoring_func", _SCORING[name])
    if scoring != _SCORING[name]:
        raise ValueError(
            f"scoring_func: got {scoring!r}, supported for {name} is {_SCORING[name]!r}"
        )
    normalize = keys.flag("norm_topk_prob")
    if normalize and name == _V2:
        # Its own code and transformers' disagree on what that means.
        raise ValueError(f"norm_topk_prob: got True, supported for {name} is False")
    groups = (keys.get("n_group"), keys.get("topk_group"))
    if method == "greedy":
        # No part of that method; V2-Lite writes 1 and 1.
        groups = (1, 1)
    elif None in groups:
        raise ValueError(
            f"n_group, topk_group: got {groups[0]!r} and {groups[1]!r}, expected integers of at "
            f"least 1 for topk_method {method!r}"
        )
    return RouterConfig(
        method=method,
        num_experts=keys.count("n_routed_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
        num_groups=groups[0],
        groups_per_token=groups[1],
        normalize=normalize,
        scaling=keys.number("routed_scaling_factor"),
    )


def config_to_hf(config: DeepseekConfig, *, dtype: str) -> dict[str, Any]:
    """A `config.json` that transformers and `config_from_hf` read back.

    Args:
        config: the model.
        dtype: the weights' type by name, such as "bfloat16".

    Raises:
        ValueError: the config says something that its Hugging Face class cannot express.
    """
    router = config.router
    values: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": ARCHITECTURES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_hidden_layers": config.num_layers,
        "first_k_dense_replace": config.num_dense_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "n_routed_experts": router.num_experts,
        "num_experts_per_tok": router.experts_per_token,
        "n_shared_experts": config.num_shared_experts,
        "n_group": router.num_groups,
        "topk_group": router.groups_per_token,
        "topk_method": router.method,
        "scoring_func": _SCORING[config.architecture],
        "norm_topk_prob": router.normalize,
        "routed_scaling_factor": router.scaling,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        **write_rope(config.rope),
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": dtype,
    }
    if config.architecture == _V3:
        values["rope_interleave"] = config.rope_interleave
    refuse_changed(config, config_from_hf, values)
    return values
