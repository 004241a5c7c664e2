"""What a KV cache costs: bytes per token and per block, and what fits into a budget.

    plan("llama-2-13b", "50GiB", dtype="float16").num_blocks        # 4096

A model is read from the fields of a Hugging Face `config.json`, so that it need not be one that
this project runs. All byte counts are those of one rank under tensor parallelism, and come from
the layout's `page_bytes`: padding that a target asks for is in them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paged.backends.registry import TARGETS
from paged.layouts import LAYOUTS, Layout, check_slots_fit, get_layout
from paged.names import unknown_name
from paged.spec import KVCacheSpec

_PRESETS = Path(__file__).parent / "presets"

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

_WINDOWED = ("sliding_attention", "chunked_attention")
_LAYER_TYPES = ("full_attention", *_WINDOWED)
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
"""By model_type, of how many layers one sees everything, where a configuration does not say."""


@dataclass(frozen=True, slots=True)
class ModelCache:
    """What a whole model keeps for each token.

    Attributes:
        name: preset, folder or file.
        num_layers: layers with a cache. Each counts as one that keeps every token: the upper
            bound for those with a window, which need at most window + block_size tokens once
            their old blocks are returned.
        num_window_layers: how many of them have a window.
        window: its tokens; None without such layers, or where no `sliding_window` is named.
        num_heads: query heads, which tensor parallelism splits.
        num_kv_heads: KV heads; 1 for a latent cache (MLA).
        head_dim: width of a key; the latent's for MLA.
        kv_lora_rank: as in `KVCacheSpec`.
        qk_rope_head_dim: as in `KVCacheSpec`.
        dtype: what the configuration names, None where it names none.
    """

    name: str
    num_layers: int
    num_window_layers: int
    window: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    dtype: str | None = None

    @property
    def is_latent(self) -> bool:
        """Whether a token keeps one latent (MLA)."""
        return self.kv_lora_rank is not None

    @property
    def attention(self) -> str:
        """How heads share what a token keeps: "MHA", "GQA", "MQA" or "MLA"."""
        if self.is_latent:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    def spec(self, *, block_size: int, dtype: str | None = None, tp: int = 1) -> KVCacheSpec:
        """One layer's cache on one of `tp` ranks.

        KV heads are split over the ranks. With more ranks than heads each rank keeps one head,
        and several keep the same. A latent has no heads: every rank keeps all of it.

        Raises:
            ValueError: no dtype, or heads that `tp` does not divide.
        """
        dtype = dtype or self.dtype
        if dtype is None:
            raise ValueError(f"dtype: {self.name} names none, expected one to be given")
        if tp < 1 or self.num_heads % tp:
            raise ValueError(f"tp: got {tp}, expected a divisor of {self.num_heads} query heads")
        if not self.is_latent and self.num_kv_heads % tp and tp % self.num_kv_heads:
            raise ValueError(
                f"tp: got {tp}, expected a divisor or a multiple of {self.num_kv_heads} KV heads"
            )
        return KVCacheSpec(
            num_kv_heads=max(self.num_kv_heads // tp, 1),
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=dtype,
            kv_lora_rank=self.kv_lora_rank,
            qk_rope_head_dim=self.qk_rope_head_dim,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What fits into one rank's memory budget.

    Attributes:
        model: name of the model.
        attention: as in `ModelCache`.
        layout: name of the layout whose pages were counted.
        target: platform whose padding was counted.
        dtype: storage type.
        block_size: tokens per block.
        tp: ranks of tensor parallelism.
        memory: the budget in bytes.
        num_layers: layers counted, windowed ones as if they kept every token.
        num_window_layers: how many of them have a window.
        window: its tokens; None without such layers, or where no `sliding_window` is named.
        num_kv_heads: KV heads on one rank.
        kv_replicas: ranks that keep the same KV head or latent.
        values_per_token_per_layer: numbers kept, padding not counted.
        bytes_per_token_per_layer: a block's share for one token, rounded up.
        bytes_per_token: the same over all layers.
        bytes_per_token_past_window: the same over those without a window alone: what a token adds
            to a sequence longer than the window, for whoever returns the blocks behind it.
        bytes_per_block_per_layer: one page, padding included.
        bytes_per_block: the same over all layers.
        padding_per_block: bytes of it that are padding.
        num_blocks: blocks that fit, the null block (block 0) included: requests get one less.
        num_tokens: tokens' worth of memory, the null block and part of a block at the end included.
        num_usable_tokens: tokens that requests have room for, those two left out.
    """

    model: str
    attention: str
    layout: str
    target: str
    dtype: str
    block_size: int
    tp: int
    memory: int
    num_layers: int
    num_window_layers: int
    window: int | None
    num_kv_heads: int
    kv_replicas: int
    values_per_token_per_layer: int
    bytes_per_token_per_layer: int
    bytes_per_token: int
    bytes_per_token_past_window: int
    bytes_per_block_per_layer: int
    bytes_per_block: int
    padding_per_block: int
    num_blocks: int
    num_tokens: int
    num_usable_tokens: int

    def num_requests(self, tokens: int) -> int:
        """Requests of this many tokens each that fit at once."""
        return (self.num_blocks - 1) // blocks_for(tokens, self.block_size)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def plan(
    model: str | Path | Mapping[str, Any] | ModelCache,
    memory: int | str,
    *,
    dtype: str | None = None,
    block_size: int = 16,
    tp: int = 1,
    layout: str | Layout | None = None,
    target: str = "cpu",
) -> Plan:
    """What a model's cache costs, and what fits into a budget.

    Args:
        model: as for `read_model`, or what it returned.
        memory: bytes for the cache on one rank, a number or as for `parse_bytes`.
        dtype: storage type; the configuration's by default.
        block_size: tokens per block.
        tp: ranks of tensor parallelism.
        layout: by default the first known layout that can hold the model's cache.
        target: platform, one of `paged.backends.registry.TARGETS`; a TPU pads.

    Raises:
        ValueError: naming the argument, its value and what is accepted; also where the budget
            holds no block beside the null block.
    """
    if target not in TARGETS:
        raise ValueError(f"target: got {target!r}, expected one of {', '.join(TARGETS)}")
    model = model if isinstance(model, ModelCache) else read_model(model)
    budget = parse_bytes(memory)
    spec = model.spec(block_size=block_size, dtype=dtype, tp=tp)
    chosen = default_layout(spec) if layout is None else get_layout(layout)
    page = chosen.page_bytes(spec, target=target)
    block, num_full = page * model.num_layers, model.num_layers - model.num_window_layers
    num_blocks = budget // block
    if num_blocks < 2:
        raise ValueError(
            f"memory: got {budget} bytes, expected at least two blocks of {block} bytes "
            "(block 0 is the null block)"
        )
    check_slots_fit(num_blocks, block_size)
    return Plan(
        model=model.name,
        attention=model.attention,
        layout=chosen.name,
        target=target,
        dtype=spec.dtype,
        block_size=block_size,
        tp=tp,
        memory=budget,
        num_layers=model.num_layers,
        num_window_layers=model.num_window_layers,
        window=model.window,
        num_kv_heads=spec.num_kv_heads,
        kv_replicas=tp if model.is_latent else max(tp // model.num_kv_heads, 1),
        values_per_token_per_layer=spec.values_per_token,
        bytes_per_token_per_layer=-(-page // block_size),
        bytes_per_token=-(-block // block_size),
        bytes_per_token_past_window=-(-page * num_full // block_size),
        bytes_per_block_per_layer=page,
        bytes_per_block=block,
        padding_per_block=block - model.num_layers * block_size * spec.bytes_per_token,
        num_blocks=num_blocks,
        num_tokens=budget * block_size // block,
        num_usable_tokens=(num_blocks - 1) * block_size,
    )


def default_layout(spec: KVCacheSpec) -> Layout:
    """The first known layout that can hold such a cache."""
    return next(layout for layout in LAYOUTS.values() if not layout.refusals(spec))


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that a request of this many tokens takes."""
    if tokens < 1:
        raise ValueError(f"tokens: got {tokens}, expected an integer of at least 1")
    return -(-tokens // block_size)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What some requests take.

    Attributes:
        num_blocks: blocks of all requests.
        num_slots: tokens that these blocks have room for.
        num_tokens: tokens that are there.
    """

    num_blocks: int
    num_slots: int
    num_tokens: int

    @property
    def waste(self) -> float:
        """Share of the slots that hold no token, 0 to 1."""
        return 1 - self.num_tokens / self.num_slots


def occupancy(lengths: Sequence[int], block_size: int) -> Occupancy:
    """What requests of these lengths take in blocks.

    Reserving `n` slots for each request is the same question with blocks of n tokens.
    """
    num_blocks = sum(blocks_for(length, block_size) for length in lengths)
    return Occupancy(num_blocks, num_blocks * block_size, sum(lengths))


def parse_bytes(text: int | str) -> int:
    """Bytes from "50GiB", "512 MiB", "1.5GB" or a plain number; kB, MB, GB and TB are decimal.

    Raises:
        ValueError: not of that form, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(text).strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(
            f"memory: got {text!r}, expected bytes as 50GiB, 512MiB, 24GB or a plain number"
        )
    whole, _, fraction = match[1].partition(".")
    # In integers: a float would round budgets of many terabytes.
    size = int(whole + fraction) * _UNITS[match[2]] // 10 ** len(fraction)
    if size < 1:
        raise ValueError(f"memory: got {text!r}, expected at least one byte")
    return size


def preset_names() -> tuple[str, ...]:
    """Models whose configuration is known here by name."""
    return tuple(sorted(file.stem for file in _PRESETS.glob("*.json")))


def read_model(source: str | Path | Mapping[str, Any]) -> ModelCache:
    """What a model keeps per token, from the fields of its `config.json`.

    Args:
        source: a preset's name, a folder with a config.json, such a file, or its content.

    Raises:
        ValueError: nothing of that name, a file that cannot be read or holds no JSON object, or
            fields missing or unknown.
    """
    if isinstance(source, Mapping):
        return _from_config(source, name=str(source.get("model_type", "config")))
    if source in preset_names():
        file = _PRESETS / f"{source}.json"
    else:
        file = Path(source).expanduser()
        file = file / "config.json" if file.is_dir() else file
        if not file.is_file():
            raise unknown_name(
                "model",
                str(source),
                preset_names(),
                expected="a config.json, a folder with one, or one of {}",
            )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"model: got {str(source)!r}, expected a config.json that can be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ValueError(f"model: {file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"model: {file} holds {type(config).__name__}, expected an object")
    return _from_config(config, name=str(source))


def _from_config(outer: Mapping[str, Any], *, name: str) -> ModelCache:
    # Models of several modalities keep the decoder's fields in an object of its own.
    text = outer.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ValueError(
            f"model: text_config of {name} got {type(text).__name__}, expected an object"
        )
    config = {**outer, **text}
    num_heads = _integer(config, "num_attention_heads", name)
    num_kv_heads = _integer(config, "num_key_value_heads", name, num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"model: num_key_value_heads of {name} got {num_kv_heads}, expected a divisor of "
            f"num_attention_heads {num_heads}"
        )
    num_layers, num_window_layers = _count_layers(config, name)
    dtype = config.get("dtype") or config.get("torch_dtype")
    common = {
        "name": name,
        "num_layers": num_layers,
        "num_window_layers": num_window_layers,
        "window": config.get("sliding_window") if num_window_layers else None,
        "num_heads": num_heads,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
    }
    head_dim = _integer(config, "head_dim", name, 0)
    if latent := _integer(config, "kv_lora_rank", name, 0):
        rope = _integer(config, "qk_rope_head_dim", name, 0, low=0)
        return ModelCache(
            **common,
            num_kv_heads=1,
            head_dim=latent + rope,
            kv_lora_rank=latent,
            qk_rope_head_dim=rope,
        )
    return ModelCache(
        **common,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim or _integer(config, "hidden_size", name) // num_heads,
    )


def _integer(
    config: Mapping[str, Any], field: str, name: str, default: int | None = None, *, low: int = 1
) -> int:
    """A field; `default`, unless it is None, where the field is missing or null."""
    value = config.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        given = f"got {value!r}" if field in config else "is not there"
        raise ValueError(
            f"model: {field} of {name} {given}, expected an integer of at least {low} as in "
            "config.json"
        )
    return value


def _count_layers(config: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Layers with a cache of keys and values, and how many of them have a window."""
    num_layers = _integer(config, "num_hidden_layers", name)
    window = _integer(config, "sliding_window", name, 0)
    types = config.get("layer_types")
    if types is not None:
        _check_types(types, num_layers, name)
        cached = [kind for kind in types if kind in _LAYER_TYPES]
        return len(cached), sum(kind in _WINDOWED for kind in cached)
    if not window or config.get("use_sliding_window") is False:
        return num_layers, 0
    by_class = _PATTERNS.get(str(config.get("model_type")), 0)
    if pattern := _integer(config, "sliding_window_pattern", name, by_class):
        return num_layers, num_layers - num_layers // pattern
    # Qwen: the first layers see everything.
    return num_layers, max(num_layers - _integer(config, "max_window_layers", name, 0, low=0), 0)


def _check_types(types: Any, num_layers: int, name: str) -> None:
    accepted = f"{', '.join(_LAYER_TYPES)} or linear_attention (which keeps nothing per token)"
    if not isinstance(types, list | tuple):
        raise ValueError(f"layer_types: {name} has {types!r}, expected a list of {accepted}")
    for kind in types:
        if kind not in (*_LAYER_TYPES, "linear_attention"):
            raise ValueError(f"layer_types: {name} has {kind!r}, expected {accepted}")
    if len(types) != num_layers:
        raise ValueError(
            f"layer_types: {name} has {len(types)} entries, expected num_hidden_layers {num_layers}"
        )
