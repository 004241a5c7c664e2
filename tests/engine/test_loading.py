"""The type in which a model runs where nobody names one."""

import logging

import jax.numpy as jnp
import pytest

from paged.engine import LLM, arithmetic
from paged.engine.arithmetic import cpu_flags, running_dtype
from paged.engine.loading import load
from paged.models import load_model


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """Pretends that /proc/cpuinfo has these flags; None for no such file."""

    def pretend(flags):
        file = tmp_path / "cpuinfo"
        if flags is not None:
            file.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(arithmetic, "_CPUINFO", file)
        arithmetic._has_bfloat16_products.cache_clear()

    yield pretend
    arithmetic._has_bfloat16_products.cache_clear()


@pytest.mark.parametrize(
    ("flags", "stored", "platform", "expected"),
    [
        ("avx2", "bfloat16", "cpu", "float32"),
        ("avx2 avx512_bf16", "bfloat16", "cpu", "float32"),
        ("avx512_bf16 amx_bf16", "bfloat16", "cpu", "bfloat16"),
        (None, "bfloat16", "cpu", "float32"),
        ("amx_bf16", "float16", "cpu", "float32"),
        ("amx_bf16", "float32", "cpu", "float32"),
        ("avx2", "bfloat16", "tpu", "bfloat16"),
        ("avx2", "float16", "gpu", "float16"),
    ],
)
def test_by_hand(processor, flags, stored, platform, expected):
    processor(flags)
    assert running_dtype(stored, platform=platform) == expected


def test_flags_are_words(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: amx_bf16\nflags\t\t: fpu not_amx_bf16 sse\nflags : later\n")
    assert cpu_flags(file) == {"fpu", "not_amx_bf16", "sse"}
    assert cpu_flags(tmp_path / "absent") == frozenset()
    file.write_text("processor : 0\n")
    assert cpu_flags(file) == frozenset()


@pytest.mark.parametrize(
    ("flags", "asked", "expected", "is_said"),
    [
        ("avx2", None, jnp.float32, True),
        ("avx2", "bfloat16", jnp.bfloat16, False),
        ("amx_bf16", None, jnp.bfloat16, False),
    ],
)
def test_a_checkpoint_in_16_bits(processor, caplog, flags, asked, expected, is_said):
    processor(flags)
    with caplog.at_level(logging.WARNING):
        model, tokenizer = load("tiny-gqa", None, asked)
    assert model.dtype == expected
    assert tokenizer is not None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == is_said
    if is_said:
        assert said[0].startswith("tiny-gqa is stored in bfloat16 and runs in float32")


def test_a_model_that_somebody_made_stays_as_it_is(processor, caplog):
    processor("avx2")
    model = load_model("tiny-gqa")
    assert model.dtype == jnp.bfloat16
    assert load(model, None, None)[0] is model
    assert caplog.records == []


@pytest.mark.parametrize("dtype", ["float64", "int8", "", 5, {"names": ["a"]}, jnp.ones(1)])
def test_a_type_that_no_model_runs_in_is_refused_alike(dtype):
    for model in ("tiny-gqa", load_model("tiny-gqa")):
        with pytest.raises(ValueError, match=r"^dtype: got .*, expected one of bfloat16, float16"):
            LLM(model, dtype=dtype)


def test_the_cache_is_of_the_type_that_runs(processor):
    processor("avx2")
    llm = LLM("tiny-gqa", num_blocks=8)
    assert llm.model.dtype == jnp.float32
    assert {cache.dtype for cache in llm._runner._caches} == {"float32"}
