"""What `SamplingParams` refuses, and what it makes of what it takes."""

import math

import pytest

from paged.engine import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.5),
        ("max_tokens", 0),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop_token_ids", (-3,)),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value(field, value):
    shown = value[0] if isinstance(value, tuple) else value
    with pytest.raises(ValueError, match=rf"^{field}.*got {shown!r}"):
        SamplingParams(**{field: value})


def test_a_single_stop_string_is_one_string():
    assert SamplingParams(stop="end").stop == ("end",)


def test_lists_become_hashable():
    assert hash(SamplingParams(stop=["a", "b"], stop_token_ids=[1])) is not None


def test_greedy_ignores_filters():
    params = SamplingParams(temperature=0, top_k=3)
    assert params.is_greedy
    assert not params.is_filtered


def test_best_of_is_how_many_are_drawn():
    assert (SamplingParams(n=3).num_samples, SamplingParams(n=2, best_of=5).num_samples) == (3, 5)
    with pytest.raises(ValueError, match="best_of: got 2, expected an integer from 3 to"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(ValueError, match="best_of: got True, expected an integer"):
        SamplingParams(best_of=True)
    with pytest.raises(ValueError, match="best_of: got 2 with temperature 0, expected 1"):
        SamplingParams(best_of=2, temperature=0)
    assert SamplingParams(best_of=1, temperature=0).is_greedy
