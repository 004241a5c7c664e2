"""Loading and saving without transformers: round trips, and errors that list what is wrong."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import dense_logits
from flax import nnx
from safetensors.numpy import load_file, save_file

from paged.models import (
    ModelConfig,
    Transformer,
    builtin_models,
    load_model,
    load_tokenizer,
    resolve_model,
    save_model,
)
from paged.models.checkpoint import parameter_dtype

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    architecture="Qwen2ForCausalLM",
    qkv_bias=True,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_ids=(2, 3),
)


@pytest.fixture
def folder(tmp_path):
    save_model(Transformer(CONFIG, rngs=nnx.Rngs(0)), tmp_path)
    return tmp_path


def rewrite(folder, change):
    """Apply `change` to the folder's tensors, by name."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_saved_loads_bit_for_bit(dtype, tmp_path):
    model = Transformer(CONFIG, rngs=nnx.Rngs(0), dtype=dtype)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config
    assert again.attention_specs == model.attention_specs
    assert again.dtype.name == dtype
    jax.tree.map(np.testing.assert_array_equal, nnx.state(again), nnx.state(model))


def test_tensors_bear_hugging_faces_names_and_shapes(folder):
    shapes = {
        name: list(value.shape) for name, value in load_file(folder / "model.safetensors").items()
    }
    layer = {name: shape for name, shape in shapes.items() if name.startswith("model.layers.1.")}
    assert shapes["model.embed_tokens.weight"] == [50, 32]
    assert "lm_head.weight" not in shapes
    assert layer == {
        "model.layers.1.input_layernorm.weight": [32],
        "model.layers.1.post_attention_layernorm.weight": [32],
        "model.layers.1.self_attn.q_proj.weight": [32, 32],
        "model.layers.1.self_attn.q_proj.bias": [32],
        "model.layers.1.self_attn.k_proj.weight": [16, 32],
        "model.layers.1.self_attn.k_proj.bias": [16],
        "model.layers.1.self_attn.v_proj.weight": [16, 32],
        "model.layers.1.self_attn.v_proj.bias": [16],
        "model.layers.1.self_attn.o_proj.weight": [32, 32],
        "model.layers.1.mlp.gate_proj.weight": [48, 32],
        "model.layers.1.mlp.up_proj.weight": [48, 32],
        "model.layers.1.mlp.down_proj.weight": [32, 48],
    }


def test_one_error_lists_everything_that_is_wrong(folder):
    def spoil(tensors):
        del tensors["model.norm.weight"]
        del tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
        tensors["model.layers.1.self_attn.k_proj.weight"] = np.zeros((8, 32), np.float32)
        tensors["model.layers.1.self_attn.q_proj.bias"] = np.zeros(32, np.int32)

    rewrite(folder, spoil)
    with pytest.raises(ValueError, match="do not fit Qwen2ForCausalLM") as caught:
        load_model(folder)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "extra model.layers.2.mlp.up_proj.weight [2, 2]",
        "missing model.layers.0.mlp.up_proj.weight [48, 32]",
        "missing model.norm.weight [32]",
        "model.layers.1.self_attn.k_proj.weight: got [8, 32], expected [16, 32]",
        "model.layers.1.self_attn.q_proj.bias: got type I32, expected one of F32, F16, BF16",
    ]


def test_a_bias_that_the_config_does_not_know_is_extra(folder):
    name = "model.layers.0.self_attn.o_proj.bias"
    rewrite(folder, lambda tensors: tensors.update({name: np.ones(32, np.float32)}))
    with pytest.raises(ValueError, match=rf"extra {name} \[32\]"):
        load_model(folder)


def test_harmless_extras_pass(folder):
    before = dense_logits(load_model(folder), np.arange(9))

    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    rewrite(folder, add)
    np.testing.assert_array_equal(dense_logits(load_model(folder), np.arange(9)), before)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(folder):
    rewrite(
        folder, lambda tensors: tensors.update({"lm_head.weight": np.ones((50, 32), np.float32)})
    )
    with pytest.raises(ValueError, match=r"extra lm_head\.weight"):
        load_model(folder)


def test_shards_load_like_one_file(folder):
    before = dense_logits(load_model(folder), np.arange(9))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == part}, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    np.testing.assert_array_equal(dense_logits(load_model(folder), np.arange(9)), before)

    (folder / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names files not there: part-1\.safetensors"):
        load_model(folder)


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor"):
        load_model(folder)


def test_a_dtype_casts_every_parameter(folder):
    model = load_model(folder, dtype="bfloat16")
    assert {x.dtype.name for x in jax.tree.leaves(nnx.state(model))} == {"bfloat16"}


def test_names_and_paths_resolve(folder, tmp_path):
    assert resolve_model(folder) == resolve_model(str(folder)) == folder
    for name in builtin_models():
        assert resolve_model(name).name == name
    with pytest.raises(ValueError, match="model: got 'no-such-model', expected a folder with"):
        resolve_model("no-such-model")


def test_tokenizer_takes_end_ids_from_the_generation_config_first(folder):
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    backend.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).eos_token_ids == (2, 3)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_token_ids == (7,)
    assert tokenizer.bos_token_id == 1
    assert tokenizer.encode("ab") == [0, 1]
    assert tokenizer.vocab_size == 2
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json: not there"):
        load_tokenizer(folder)


def one_line(caught):
    return len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", ["cut", b"", b"\0" * 8, b"garbage" * 9])
def test_a_broken_weight_file_is_named(content, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7] if content == "cut" else content)
    with pytest.raises(ValueError, match=r"model\.safetensors: got \d+ bytes .*expected") as caught:
        load_model(folder)
    assert one_line(caught)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", "weight_map: got None, expected an object"),
        ('{"weight_map": []}', r"weight_map: got \[\], expected an object"),
        ("[]", r"got \[\], expected a JSON object"),
        ('{"weight_map": {"a": null}}', r"weight_map\.a: got None, expected a file name"),
        ("{", "got no JSON .*expected a JSON object"),
    ],
)
def test_a_broken_index_is_named(index, message, folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=rf"index\.json: {message}") as caught:
        load_model(folder)
    assert one_line(caught)


@pytest.mark.parametrize("dtype", ["nosuch", "int8", "float64"])
def test_a_dtype_that_no_parameter_has_is_refused(dtype):
    with pytest.raises(ValueError, match=f"dtype: got '{dtype}', expected one of bfloat16, float"):
        load_model("tiny-gqa", dtype=dtype)


@pytest.mark.parametrize("kind", ["bfloat16", "f2", np.float32, jnp.float16, jnp.dtype("float32")])
def test_a_dtype_is_taken_in_each_of_its_forms(kind):
    assert parameter_dtype(kind) == jnp.dtype(kind)


@pytest.mark.parametrize("array", [np.zeros(2, np.float32), jnp.ones(1), np.float32(1)])
def test_an_array_is_no_dtype_though_it_has_one(array):
    with pytest.raises(ValueError, match=r"^dtype: got .*, expected one of bfloat16, float16"):
        parameter_dtype(array)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "got no tokenizer .*expected a Hugging Face tokenizer"),
        ("tokenizer.json", "[]", "got no tokenizer .*expected a Hugging Face tokenizer"),
        ("generation_config.json", "[]", r"got \[\], expected a JSON object"),
        ("generation_config.json", "{", "got no JSON .*expected a JSON object"),
        (
            "generation_config.json",
            '{"eos_token_id": [[1]]}',
            r"eos_token_id: got \[\[1\]\], expec",
        ),
        ("generation_config.json", '{"bos_token_id": "q"}', "bos_token_id: got 'q', expected"),
        ("config.json", "null", "got null, expected a JSON object"),
    ],
)
def test_a_broken_file_beside_the_tokenizer_is_named(name, content, message, folder):
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    backend.save(str(folder / "tokenizer.json"))
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"/{name}: {message}") as caught:
        load_tokenizer(folder)
    assert one_line(caught)


def test_a_lone_surrogate_is_no_text():
    with pytest.raises(ValueError, match=r"text\[1\]: got the lone surrogate '\\udc80', expected"):
        load_tokenizer("tiny-gqa").encode("a\udc80")


def test_importing_the_models_takes_neither_torch_nor_transformers():
    program = "import sys, paged.models; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
