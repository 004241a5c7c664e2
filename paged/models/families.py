"""The families of models, and which of them a config.json or a configuration is of."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paged.dtypes import COMPUTE_DTYPES
from paged.models import hf_config, hf_tensors
from paged.models.config import ARCHITECTURES as LLAMA
from paged.models.config import ModelConfig
from paged.models.decoder import Decoder, DecoderConfig
from paged.models.deepseek import DeepseekConfig, DeepseekTransformer
from paged.models.deepseek import hf as deepseek_hf
from paged.models.deepseek import hf_tensors as deepseek_tensors
from paged.models.deepseek.config import ARCHITECTURES as DEEPSEEK
from paged.models.hf_architecture import architecture_name
from paged.models.hf_keys import Keys
from paged.models.hf_tensors import Parameter, ParameterPath
from paged.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Family:
    """What loading and saving need to know of a family.

    Attributes:
        architectures: its Hugging Face classes, and their model_type.
        config: its configurations' class.
        read: from a config.json, see `config_from_hf`.
        write: to one, see `config_to_hf`.
        build: a model with random weights, `build(config, rngs=..., dtype=...)`.
        parameters: where each parameter lies in a checkpoint.
        is_beyond: whether a tensor of a checkpoint is none of the model's, and no fault.
    """

    architectures: Mapping[str, str]
    config: type
    read: Callable[..., Any]
    write: Callable[..., dict[str, Any]]
    build: Callable[..., Decoder]
    parameters: Callable[[Any], dict[ParameterPath, Parameter]]
    is_beyond: Callable[[str, Any], bool] = lambda name, config: False


FAMILIES = (
    Family(
        architectures=LLAMA,
        config=ModelConfig,
        read=hf_config.config_from_hf,
        write=hf_config.config_to_hf,
        build=Transformer,
        parameters=hf_tensors.parameter_table,
    ),
    Family(
        architectures=DEEPSEEK,
        config=DeepseekConfig,
        read=deepseek_hf.config_from_hf,
        write=deepseek_hf.config_to_hf,
        build=DeepseekTransformer,
        parameters=deepseek_tensors.parameter_table,
        is_beyond=deepseek_tensors.is_beyond,
    ),
)

_MODEL_TYPES = {name: kind for family in FAMILIES for name, kind in family.architectures.items()}

ARCHITECTURES = tuple(_MODEL_TYPES)
"""Hugging Face classes that can be loaded."""


def family_of(config: DecoderConfig) -> Family:
    """The family that a configuration is of.

    Raises:
        ValueError: of none.
    """
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    names = ", ".join(family.config.__name__ for family in FAMILIES)
    raise ValueError(f"config: got a {type(config).__name__}, expected one of {names}")


def config_from_hf(
    values: Mapping[str, Any], *, ignore_keys: Collection[str] = ()
) -> ModelConfig | DeepseekConfig:
    """The model that a Hugging Face `config.json` describes.

    Args:
        values: the parsed file, as transformers 4 or 5 writes it.
        ignore_keys: keys to pass over that would otherwise be refused as unknown.

    Raises:
        ValueError: an architecture, rope type or activation that is not implemented, a value
            missing or out of range, or an unknown key that is not null or false. The key, its
            value and what is supported are named.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"config: got {values!r}, expected a JSON object")
    name = architecture_name(Keys(values), _MODEL_TYPES)
    family = next(family for family in FAMILIES if name in family.architectures)
    return family.read(values, ignore_keys=ignore_keys)


def config_to_hf(config: DecoderConfig, *, dtype: str) -> dict[str, Any]:
    """A `config.json` that transformers, 4 or 5, and `config_from_hf` read back.

    Args:
        config: the model.
        dtype: the weights' type by name, one of `paged.dtypes.COMPUTE_DTYPES`.

    Raises:
        ValueError: another type, or a config that says something its Hugging Face class cannot
            express.
    """
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, expected one of {', '.join(COMPUTE_DTYPES)}")
    return family_of(config).write(config, dtype=dtype)
