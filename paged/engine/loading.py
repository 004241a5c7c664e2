"""A model and its tokenizer, in the type in which they will run."""

import logging
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from paged.engine.arithmetic import running_dtype
from paged.models import Decoder, Tokenizer, load_model, load_tokenizer, resolve_model
from paged.models.checkpoint import parameter_dtype
from paged.models.layers import Float32Param

_LOGGER = logging.getLogger(__name__)


def load(
    model: str | Path | Decoder, tokenizer: Tokenizer | None, dtype: DTypeLike | None
) -> tuple[Decoder, Tokenizer | None]:
    """The model in `dtype`, and the tokenizer given or that of the model's folder.

    Without a dtype a folder's model runs in the type that it is stored in, unless this platform is
    slow in that (`running_dtype`), which is said once by the log; a `Decoder` stays as it is.

    Raises:
        ValueError: no model, or a dtype that no model can run in.
    """
    if dtype is not None:
        dtype = parameter_dtype(dtype)
    if not isinstance(model, str | Path):
        if not isinstance(model, Decoder):
            raise ValueError(f"model: got {model!r}, expected a name, a folder or a `Decoder`")
        return model if dtype is None else _cast(model, dtype), tokenizer

    def choose(stored: str) -> str:
        chosen = running_dtype(stored, platform=jax.default_backend())
        if chosen != stored:
            _LOGGER.warning(
                "%s is stored in %s and runs in %s, in which this processor is faster; "
                "dtype %s would keep it",
                model,
                stored,
                chosen,
                stored,
            )
        return chosen

    loaded = load_model(model, dtype=dtype, choose_dtype=choose)
    return loaded, tokenizer or _tokenizer_of(model)


def _tokenizer_of(model: str | Path) -> Tokenizer | None:
    folder = resolve_model(model)
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def _cast(model: Decoder, dtype: DTypeLike) -> Decoder:
    graph, state = nnx.split(model)
    cast = {
        path: variable
        if isinstance(variable, Float32Param)
        else variable.replace(jnp.asarray(variable[...], dtype))
        for path, variable in nnx.to_flat_state(state)
    }
    return nnx.merge(graph, nnx.from_flat_state(cast))
