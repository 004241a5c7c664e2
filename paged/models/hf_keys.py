"""A Hugging Face config's keys, read one by one, so that none goes unnoticed.

Every key is either read, known to change no arithmetic, or refused: a key that is silently ignored
is a model that silently computes something else.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

_BOOKKEEPING = """
    architectures attention_dropout attn_implementation bos_token_id dtype eos_token_id
    initializer_range max_position_embeddings model_type pad_token_id pretraining_tp
    tokenizer_class torch_dtype transformers_version use_cache
"""
_GENERATION = """
    bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_scores prefix remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate sep_token_id suppress_tokens temperature top_k top_p typical_p
"""
_TRAINING = """
    chunk_size_feed_forward finetuning_task id2label label2id problem_type task_specific_params
    tf_legacy_loss tie_encoder_decoder torchscript use_bfloat16
"""
MOST_LAYERS = 10_000
"""More than any model has. Lists are made with an entry for each, which must come to an end."""

_HARMLESS = frozenset(f"{_BOOKKEEPING} {_GENERATION} {_TRAINING}".split())

# It would matter, but not at this value. A key at null or false is taken not to matter either.
_NEUTRAL = {"partial_rotary_factor": 1.0}


class Keys:
    """A config's values, with checked types, remembering which were asked for.

    Args:
        values: the parsed object.
        prefix: where it lies in the file, for messages: "rope_scaling." for a nested one.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"config: got {values!r}, expected a JSON object")
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        """Whether the key is written, even as null."""
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The key's value; `default` where it is missing or null."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def require(self, key: str) -> Any:
        """The key's value, null included.

        Raises:
            ValueError: the key is missing.
        """
        if key not in self._values:
            raise ValueError(f"{self._prefix}{key}: missing from the config")
        return self.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; required if there is no default."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._error(key, value, "an integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1; required if there is no default."""
        value = self.get(key, default)
        if not _is_integer(value, 1):
            raise self._error(key, value, "an integer of at least 1")
        return value

    def num_layers(self) -> int:
        """`num_hidden_layers`, an integer from 1 to `MOST_LAYERS`."""
        value = self.count("num_hidden_layers")
        if value > MOST_LAYERS:
            raise self._error("num_hidden_layers", value, f"an integer from 1 to {MOST_LAYERS}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float = -math.inf) -> float:
        """A finite number of at least `low`; required if there is no default."""
        value = self.get(key, default)
        expected = "a finite number" + (f" of at least {low:g}" if math.isfinite(low) else "")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(key, value, expected)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < low:
            raise self._error(key, value, expected)
        return number

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """A token's id; `default` where it is missing or null."""
        value = self.get(key, default)
        if value is not None and not _is_integer(value, 0):
            raise self._error(key, value, "an integer of at least 0 or null")
        return value

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Token ids, written as a list or as one integer; `default` if missing or null."""
        value = self.get(key, default)
        ids = value if isinstance(value, list | tuple) else [value]
        if not all(_is_integer(entry, 0) for entry in ids):
            raise self._error(key, value, "an integer of at least 0, a list of those or null")
        return tuple(ids)

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean; `default` where it is missing or null."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def refuse_unread(self, ignore: Collection[str] = ()) -> None:
        """Complain about every key that nothing asked for and that may matter.

        Raises:
            ValueError: it lists those keys with their values.
        """
        refused = {k: v for k, v in self._values.items() if k not in ignore and self._matters(k, v)}
        if refused:
            listed = ", ".join(f"{self._prefix}{k}={v!r}" for k, v in sorted(refused.items()))
            raise ValueError(
                f"config keys that may change the arithmetic and are not implemented: {listed}; "
                "supported is a config without them (or name those that do not matter to be "
                "ignored)"
            )

    def _matters(self, key: str, value: Any) -> bool:
        known = key in self._read or key in _HARMLESS or key.startswith("_")
        neutral = value is None or value is False or (key in _NEUTRAL and value == _NEUTRAL[key])
        return not known and not neutral

    def _error(self, key: str, value: Any, expected: str) -> ValueError:
        got = "null" if value is None and key in self._values else repr(value)
        got = "nothing" if key not in self._values else got
        return ValueError(f"{self._prefix}{key}: got {got}, expected {expected}")


def _is_integer(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low
