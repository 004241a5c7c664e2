"""Decoders of the Llama and DeepSeek families in flax nnx, from Hugging Face checkpoints.

    model = load_model("tiny-gqa", dtype="float32")
    hidden = model(tokens, positions, attention)
    logits = model.logits(hidden)

A model calls `attention(layer, query, key, value)` and knows no cache and no layout.
"""

from paged.models.attention import Attention, DenseAttention
from paged.models.builtin import builtin_models, resolve_model
from paged.models.checkpoint import load_config, load_model, save_model
from paged.models.config import ExpertsConfig, ModelConfig
from paged.models.decoder import Decoder, DecoderConfig
from paged.models.deepseek import DeepseekConfig, DeepseekTransformer, RouterConfig
from paged.models.families import ARCHITECTURES, config_from_hf, config_to_hf
from paged.models.rope import RopeConfig
from paged.models.tokenizer import Tokenizer, load_tokenizer
from paged.models.transformer import Transformer

__all__ = [
    "ARCHITECTURES",
    "Attention",
    "Decoder",
    "DecoderConfig",
    "DeepseekConfig",
    "DeepseekTransformer",
    "DenseAttention",
    "ExpertsConfig",
    "ModelConfig",
    "RopeConfig",
    "RouterConfig",
    "Tokenizer",
    "Transformer",
    "builtin_models",
    "config_from_hf",
    "config_to_hf",
    "load_config",
    "load_model",
    "load_tokenizer",
    "resolve_model",
    "save_model",
]
