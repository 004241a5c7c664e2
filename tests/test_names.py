"""Names that nobody knows: the wording, and which name is offered."""

import pytest

from paged import get_layout, resolve
from paged.backends import load_backend
from paged.capacity import read_model
from paged.names import unknown_name
from paged.spec import AttentionSpec


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ("nhd", "layout: got 'nhd', expected one of flash_attn, mla"),
        ("flash-atn", "layout: got 'flash-atn', expected one of flash_attn, mla; did you mean"),
        ([1], "layout: got [1], expected one of flash_attn, mla"),
        ("", "layout: got '', expected one of flash_attn, mla"),
    ],
)
def test_by_hand(got, message):
    told = str(unknown_name("layout", got, ("flash_attn", "mla")))
    assert told == (f"{message} flash_attn?" if message.endswith("mean") else message)


def test_what_is_expected_beside_the_names_stands_before_the_guess():
    told = unknown_name("model", "Tiny-GQA", ["tiny-gqa"], expected="a folder, or one of {}")
    assert str(told) == (
        "model: got 'Tiny-GQA', expected a folder, or one of tiny-gqa; did you mean tiny-gqa?"
    )


def resolve_model(name):
    from paged.models import resolve_model

    return resolve_model(name)


SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0)


@pytest.mark.parametrize(
    ("ask", "got", "meant"),
    [
        (get_layout, "flashinfr", "flashinfer"),
        (get_layout, "flash-attn", "flash_attn"),
        (load_backend, "tritn", "triton"),
        (load_backend, "refrence", "reference"),
        (lambda name: resolve(SPEC, backend=name), "XLA", "xla"),
        (lambda name: resolve(SPEC, layout=name), "pakced", "packed"),
        (read_model, "llama3-8b", "llama-3-8b"),
        (resolve_model, "tiny-gpa", "tiny-gqa"),
    ],
)
def test_layouts_backends_and_models_offer_the_nearest(ask, got, meant):
    with pytest.raises(ValueError, match=rf"got '{got}', expected .*; did you mean {meant}\?$"):
        ask(got)
