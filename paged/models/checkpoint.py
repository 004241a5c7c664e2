"""Loading a model from a Hugging Face folder, and saving one that transformers can load."""

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paged.models.builtin import resolve_model
from paged.models.decoder import Decoder, DecoderConfig
from paged.models.families import Family, config_from_hf, config_to_hf, family_of
from paged.models.hf_tensors import Parameter
from paged.models.json_file import read_object

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def load_config(path: str | Path, *, ignore_keys: Collection[str] = ()) -> DecoderConfig:
    """The configuration of a built-in model or of a folder with a `config.json`, by its family.

    Raises:
        ValueError: no JSON object, and see `config_from_hf` and `resolve_model`; the file's path
            leads the message.
    """
    file = resolve_model(path) / "config.json"
    values = read_object(file)
    try:
        return config_from_hf(values, ignore_keys=ignore_keys)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def load_model(
    path: str | Path,
    dtype: DTypeLike | None = None,
    *,
    choose_dtype: Callable[[str], DTypeLike] | None = None,
    ignore_config_keys: Collection[str] = (),
) -> Decoder:
    """A `Decoder` with the weights of a built-in model or of a Hugging Face folder.

    Args:
        path: a name that `resolve_model` knows, or a folder with config.json and either
            model.safetensors or shards named by model.safetensors.index.json.
        dtype: type of the parameters, routers aside, which stay fp32; None keeps the type that
            the embedding is stored in. On a CPU choose float32: products of 16-bit matrices are
            slow there.
        choose_dtype: asked where dtype is None, with the name of the type that the embedding is
            stored in.
        ignore_config_keys: keys of config.json to pass over instead of refusing them as unknown.

    Raises:
        ValueError: another dtype than fp32, fp16, bf16; a config that is not supported; a broken
            index or safetensors file; or tensors that are missing, extra, of a wrong shape or of
            another type than those: one error that lists them all.
        FileNotFoundError: a weight file that is not there.
    """
    if dtype is not None:
        dtype = parameter_dtype(dtype)
    folder = resolve_model(path)
    config = load_config(folder, ignore_keys=ignore_config_keys)
    family = family_of(config)
    table = family.parameters(config)
    with ExitStack() as stack:
        tensors = _open_tensors(_weight_files(folder), stack)
        _check_tensors(folder, table.values(), tensors, config, family)
        if dtype is None:
            dtype = _DTYPES[tensors[_EMBEDDING].get_slice(_EMBEDDING).get_dtype()]
            if choose_dtype is not None:
                dtype = parameter_dtype(choose_dtype(dtype))
        dtype = jnp.dtype(dtype)
        # Shapes only: random weights that the file's replace at once are never made.
        model = nnx.eval_shape(lambda: family.build(config, rngs=nnx.Rngs(0), dtype=dtype))
        graph, state = nnx.split(model)
        loaded = {
            path: variable.replace(jnp.asarray(_assemble(table[path], tensors, variable.dtype)))
            for path, variable in nnx.to_flat_state(state)
        }
    return nnx.merge(graph, nnx.from_flat_state(loaded))


def parameter_dtype(dtype: DTypeLike) -> jnp.dtype:
    """The dtype of parameters that somebody asks for.

    Raises:
        ValueError: another than fp32, fp16, bf16, or no dtype.
    """
    accepted = [jnp.dtype(kind) for kind in _DTYPES.values()]
    try:
        # Of an array numpy would take the dtype.
        known = jnp.dtype(dtype) if isinstance(dtype, str | np.dtype | type) else None
    except (TypeError, ValueError):
        known = None
    if known is None or known not in accepted:
        names = ", ".join(sorted({kind.name for kind in accepted}))
        raise ValueError(f"dtype: got {dtype!r}, expected one of {names}")
    return known


def save_model(model: Decoder, path: str | Path) -> None:
    """Write config.json and model.safetensors, in the parameters' own type, for transformers too.

    The folder is made if need be. The tokenizer is not the model's: copy tokenizer.json beside.

    Raises:
        ValueError: a config that its Hugging Face class cannot express.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    values = config_to_hf(model.config, dtype=model.dtype.name)
    state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    tensors = {}
    for where, parameter in family_of(model.config).parameters(model.config).items():
        whole = np.asarray(state[where][...])
        parts = [whole] if parameter.stacked is None else whole
        for group, part in zip(parameter.groups, parts, strict=True):
            ends = np.cumsum([tensor.shape[0] for tensor in group])
            pieces = [part] if len(ends) == 1 else np.split(part, ends[:-1], axis=-1)
            for tensor, piece in zip(group, pieces, strict=True):
                piece = piece.T if parameter.transposed else piece
                tensors[tensor.name] = np.ascontiguousarray(piece)
    save_file(tensors, folder / _ONE_FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _ONE_FILE).exists():
        return [folder / _ONE_FILE]
    if not (folder / _INDEX).exists():
        raise FileNotFoundError(f"{folder}: has neither {_ONE_FILE} nor {_INDEX}")
    names = _shard_names(folder / _INDEX)
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{folder}: {_INDEX} names files not there: {', '.join(absent)}")
    return [folder / name for name in names]


def _shard_names(index: Path) -> list[str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(
            f"{index}: weight_map: got {weight_map!r}, expected an object of tensor and file names"
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise ValueError(f"{index}: weight_map.{tensor}: got {name!r}, expected a file name")
    return sorted(set(weight_map.values()))


def _open_tensors(files: Iterable[Path], stack: ExitStack) -> dict[str, Any]:
    """By tensor name, the open file that holds it. Nothing is read yet."""
    tensors = {}
    for file in files:
        try:
            handle = stack.enter_context(safe_open(file, framework="numpy"))
        except SafetensorError as error:
            raise ValueError(
                f"{file}: got {file.stat().st_size} bytes that are no safetensors ({error}), "
                "expected a whole safetensors file"
            ) from error
        tensors.update(dict.fromkeys(handle.keys(), handle))
    return tensors


def _check_tensors(
    folder: Path,
    table: Iterable[Parameter],
    tensors: dict[str, Any],
    config: DecoderConfig,
    family: Family,
) -> None:
    """Compare the files with what the config asks for, and complain once about everything."""
    expected = {t.name: t.shape for parameter in table for t in parameter.tensors}
    complaints = [f"missing {name} {list(expected[name])}" for name in expected.keys() - tensors]
    for name, handle in tensors.items():
        stored = handle.get_slice(name)
        shape, kind = tuple(stored.get_shape()), stored.get_dtype()
        if name not in expected:
            if not family.is_beyond(name, config) and not _is_harmless(name, tensors, config):
                complaints.append(f"extra {name} {list(shape)}")
        elif shape != expected[name]:
            complaints.append(f"{name}: got {list(shape)}, expected {list(expected[name])}")
        elif kind not in _DTYPES:
            complaints.append(f"{name}: got type {kind}, expected one of {', '.join(_DTYPES)}")
    if complaints:
        raise ValueError(
            f"{folder}: the weights do not fit {config.architecture} as config.json has it:\n  "
            + "\n  ".join(sorted(complaints))
        )


def _is_harmless(name: str, tensors: dict[str, Any], config: DecoderConfig) -> bool:
    # Older exports keep the rotary frequencies, which follow from the config.
    if name.endswith("rotary_emb.inv_freq"):
        return True
    # A tied head may be written out, as long as it is the embedding.
    if name == _HEAD and config.tie_word_embeddings and _EMBEDDING in tensors:
        head, embedding = (tensors[n].get_tensor(n) for n in (_HEAD, _EMBEDDING))
        return np.array_equal(head, embedding)
    return False


def _assemble(parameter: Parameter, tensors: dict[str, Any], dtype: np.dtype) -> np.ndarray:
    """One parameter's value: its tensors transposed, cast and laid side by side, in one copy."""
    if not parameter.transposed and len(parameter.tensors) == 1:
        name = parameter.tensors[0].name
        return tensors[name].get_tensor(name).astype(dtype)
    groups = parameter.groups
    width = sum(tensor.shape[0] for tensor in groups[0])
    whole = np.empty((len(groups), *parameter.tensors[0].shape[1:], width), dtype)
    for index, group in enumerate(groups):
        start = 0
        for tensor in group:
            value = tensors[tensor.name].get_tensor(tensor.name)
            whole[index, ..., start : start + tensor.shape[0]] = value.T
            start += tensor.shape[0]
    return whole[0] if parameter.stacked is None else whole
