"""Train the tiny models that ship with the package, on any text file, on one CPU core.

    python scripts/train_tiny.py TEXT --out DIR               train, evaluate and save
    python scripts/train_tiny.py TEXT --out DIR --start DIR   the same, from a saved model on
    python scripts/train_tiny.py TEXT --evaluate DIR          evaluate on TEXT's last tenth

tiny-gqa took two runs, the second because the first's rate had fallen too low by the time
that it came to 512 tokens (it stood at 1.45, but past 300 tokens at 1.9):

    python scripts/train_tiny.py TEXT --out first
    python scripts/train_tiny.py TEXT --out tiny-gqa --start first --phases 512:400 \\
        --learning-rate 2e-3

tiny-mla, a DeepSeek V3 with a latent cache, has the tokenizer of tiny-gqa. Its routers' biases
stay at 0: four experts of which a token takes two need no balancing to all be of use.

    python scripts/train_tiny.py TEXT --out tiny-mla --family deepseek --tokenizer tiny-gqa \\
        --layers 3 --phases 128:600 256:250

The tokenizer (byte-level BPE) and the weights see the first nine tenths of TEXT only. The figure
is nats per byte of the last tenth: every token of it is scored, with 128 to 255 tokens of context
where there are so many, and the very first at log(vocab_size). It is measured on the weights as
saved, rounded to bfloat16. Progress lines count with no more context than was trained so far.

DIR gets config.json, model.safetensors, tokenizer.json and training.json, which says what it took.
Needs the extra `train` (optax).
"""

import argparse
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import tokenizers
from flax import nnx

from paged.models import (
    Decoder,
    DeepseekConfig,
    DeepseekTransformer,
    DenseAttention,
    ModelConfig,
    RouterConfig,
    Transformer,
    load_model,
    load_tokenizer,
    save_model,
)

EVAL_CONTEXT = 256
RECORD = "training.json"
RECORDED_FLAGS = ("tokens_per_step", "learning_rate", "weight_decay", "dropout", "seed")
HELD_OUT = 0.1


@dataclass(frozen=True)
class Phase:
    """A stretch of training at one sequence length."""

    context: int
    steps: int

    @classmethod
    def parse(cls, text: str) -> "Phase":
        """From "context:steps"."""
        context, steps = (int(part) for part in text.split(":"))
        return cls(context, steps)


def parse_arguments() -> argparse.Namespace:
    """The flags; every default is what the shipped model's first run was made with."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="a text file, utf-8")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, metavar="DIR", help="train and save here")
    target.add_argument("--evaluate", type=Path, metavar="DIR", help="only evaluate this model")
    parser.add_argument("--start", type=Path, metavar="DIR", help="go on from this saved model")
    parser.add_argument(
        "--family", choices=("llama", "deepseek"), default="llama", help="of a new model"
    )
    parser.add_argument("--tokenizer", metavar="MODEL", help="this model's, not one of TEXT")
    parser.add_argument("--vocab-size", type=int, default=512, help="bytes and merges together")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--intermediate", type=int, default=352)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8, help="query heads, 4 for each KV head")
    parser.add_argument("--latent", type=int, default=32, help="deepseek: kv_lora_rank")
    parser.add_argument("--rotated", type=int, default=16, help="deepseek: qk_rope_head_dim")
    parser.add_argument("--experts", type=int, default=4, help="deepseek: two for each token")
    parser.add_argument("--expert-width", type=int, default=96, help="deepseek: of each one")
    # Most steps at 128 tokens, where a token is cheapest.
    parser.add_argument(
        "--phases",
        type=Phase.parse,
        nargs="+",
        metavar="CONTEXT:STEPS",
        default=[Phase(128, 4500), Phase(256, 1000), Phase(512, 500)],
        help="sequence lengths, and optimizer steps at each",
    )
    parser.add_argument("--tokens-per-step", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=6e-3, help="peak; cosine to 0")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1, help="of each matrix's input rows")
    parser.add_argument("--seed", type=int, default=0, help="weights, crops and dropout")
    parser.add_argument("--report-every", type=int, default=500, help="steps between two lines")
    return parser.parse_args()


def split_text(path: Path) -> tuple[str, str]:
    """The first nine tenths and the last tenth, by characters."""
    text = path.read_text(encoding="utf-8")
    cut = round(len(text) * (1 - HELD_OUT))
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE: all 256 bytes are tokens, so any text survives the round trip."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def crops(
    tokens: np.ndarray, context: int, batch: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Batches [batch, context + 1] of uniformly placed pieces of the text, without end."""
    offsets = np.arange(context + 1)
    while True:
        starts = random.integers(0, len(tokens) - context, size=batch)
        yield tokens[starts[:, None] + offsets]


def token_nats(model: Decoder, tokens: jax.Array) -> jax.Array:
    """Minus log probability of each token but the first, [batch, context + 1] to [batch, context].

    The model takes one sequence without a cache; `vmap` makes it a batch.
    """
    attention = DenseAttention(model.attention_specs)

    def one(sequence: jax.Array) -> jax.Array:
        hidden = model(sequence[:-1], jnp.arange(len(sequence) - 1), attention)
        return optax.softmax_cross_entropy_with_integer_labels(model.logits(hidden), sequence[1:])

    return jax.vmap(one)(tokens)


def is_layer_matrix(path: tuple, value: jax.Array) -> bool:
    """Whether a parameter is a matrix of a layer, or a stack of them; no embedding, no norm."""
    return getattr(path[0], "key", None) == "layers" and value.ndim >= 2


def layer_matrices(state: dict) -> dict:
    """Which axes of which parameters Muon orthogonalises."""

    def axes(path: tuple, value: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        if not is_layer_matrix(path, value):
            return None
        return optax.contrib.MuonDimensionNumbers(
            reduction_axis=(value.ndim - 2,), output_axis=(value.ndim - 1,)
        )

    return jax.tree_util.tree_map_with_path(axes, state)


def drop_rows(state: dict, rate: float, key: jax.Array) -> dict:
    """Dropout on the input rows of every layer's matrices, one draw a step for the whole batch.

    The same as dropping the layer's input features, without a hook inside the model and without
    drawing a number per activation, which on a CPU would cost more than it brings.
    """
    flat, tree = jax.tree_util.tree_flatten_with_path(state)
    keys = jax.random.split(key, len(flat))
    dropped = []
    for (path, value), row_key in zip(flat, keys, strict=True):
        if is_layer_matrix(path, value):
            keep = jax.random.bernoulli(row_key, 1 - rate, (*value.shape[:-1], 1))
            value = jnp.where(keep, value / (1 - rate), 0)
        dropped.append(value)
    return jax.tree_util.tree_unflatten(tree, dropped)


score = nnx.jit(token_nats)


def nats_per_byte(
    model: Decoder, tokens: np.ndarray, num_bytes: int, context: int = EVAL_CONTEXT
) -> float:
    """Mean over all of `tokens`: windows overlap by half, and each token is scored once."""
    stride = context // 2
    padded = np.pad(tokens, (0, context), constant_values=0)
    total = math.log(model.config.vocab_size)
    starts = range(0, len(tokens) - 1, stride)
    for first in range(0, len(starts), 16):
        group = list(starts[first : first + 16])
        windows = np.stack([padded[s : s + context + 1] for s in group])
        windows = np.pad(windows, ((0, 16 - len(group)), (0, 0)))
        for start, nats in zip(group, np.asarray(score(model, jnp.asarray(windows))), strict=False):
            # Window `start` predicts tokens start+1 ..; its first half was scored by the last one.
            done = 0 if start == 0 else stride
            last = min(context, len(tokens) - 1 - start)
            total += float(nats[done:last].sum(dtype=np.float64))
    return total / num_bytes


def nats_by_position(model: Decoder, tokens: np.ndarray, num_bytes: int) -> dict[str, float]:
    """The same figure by place in the context, from windows as long as the model is meant for."""
    context, width = model.config.max_position_embeddings, 64
    count = (len(tokens) - 1) // context
    offsets = np.arange(count)[:, None] * context + np.arange(context + 1)
    batches = np.array_split(tokens[offsets], max(1, count // 8))
    scores = [np.asarray(score(model, jnp.asarray(batch))) for batch in batches]
    nats = np.concatenate(scores).mean(axis=0) * len(tokens) / num_bytes
    return {
        f"{i}-{i + width - 1}": round(float(nats[i : i + width].mean()), 3)
        for i in range(0, context, width)
    }


def rounded(model: Decoder) -> Decoder:
    """A copy whose weights are bfloat16 values, held in float32: what a saved model computes."""
    graph, state = nnx.split(model)
    return nnx.merge(
        graph, jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), state)
    )


def sample(
    model: Decoder, tokenizer: tokenizers.Tokenizer, prompt: str, length: int, seed: int
) -> str:
    """`length` tokens after `prompt` at temperature 0.8, recomputing the prefix every time."""
    tokens = tokenizer.encode(prompt).ids
    random = np.random.default_rng(seed)
    attention = DenseAttention(model.attention_specs)

    @nnx.jit
    def next_logits(model, window, last):
        return model.logits(model(window, jnp.arange(EVAL_CONTEXT), attention)[last])

    for _ in range(length):
        recent = tokens[-EVAL_CONTEXT:]
        window = np.pad(recent, (0, EVAL_CONTEXT - len(recent)))
        logits = np.asarray(next_logits(model, jnp.asarray(window), len(recent) - 1)) / 0.8
        noise = random.gumbel(size=logits.shape)
        tokens.append(int(np.argmax(logits + noise)))
    return tokenizer.decode(tokens)


def make_optimizer(options: argparse.Namespace) -> optax.GradientTransformation:
    """Muon for the layers' matrices, Adam for the embedding and the norms, on one learning rate.

    In runs of 400 steps, on the first 16,384 held-out tokens, AdamW ended at 2.09 nats per byte
    with peaks of 3e-3 and of 6e-3 alike, Muon at 1.94 and 1.88.
    """
    steps = sum(phase.steps for phase in options.phases)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, options.learning_rate, min(200, steps // 10), steps
    )
    muon = optax.contrib.muon(
        schedule,
        weight_decay=options.weight_decay,
        adam_b2=0.99,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=layer_matrices,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def train(
    model: Decoder,
    train_ids: np.ndarray,
    held_out_ids: np.ndarray,
    held_out_bytes: int,
    options: argparse.Namespace,
) -> list[dict]:
    """Train in place; returns the lines of progress."""
    optimizer = make_optimizer(options)
    graph, variables = nnx.split(model)
    state = nnx.to_pure_dict(variables)
    optimizer_state = optimizer.init(state)

    @jax.jit
    def step(state, optimizer_state, tokens, key):
        def loss(state):
            dropped = drop_rows(state, options.dropout, key)
            return token_nats(nnx.merge(graph, dropped), tokens).mean()

        value, gradient = jax.value_and_grad(loss)(state)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, state)
        return optax.apply_updates(state, updates), optimizer_state, value

    random, key = np.random.default_rng(options.seed), jax.random.key(options.seed)
    history, losses, number, start = [], [], 0, time.perf_counter()
    steps = sum(phase.steps for phase in options.phases)
    for phase in options.phases:
        batch = max(1, options.tokens_per_step // phase.context)
        batches = crops(train_ids, phase.context, batch, random)
        for _ in range(phase.steps):
            tokens = jnp.asarray(next(batches))
            state, optimizer_state, value = step(
                state, optimizer_state, tokens, jax.random.fold_in(key, number)
            )
            losses.append(value)
            number += 1
            if number % options.report_every and number != steps:
                continue
            nnx.update(model, state)
            context = min(phase.context, EVAL_CONTEXT)
            line = {
                "step": number,
                "seconds": round(time.perf_counter() - start, 1),
                "train_nats_per_token": round(float(np.mean(jax.device_get(losses))), 4),
                "nats_per_byte": round(
                    nats_per_byte(rounded(model), held_out_ids, held_out_bytes, context), 4
                ),
            }
            losses = []
            history.append(line)
            print(json.dumps(line), flush=True)
    return history


def first_model(options: argparse.Namespace, text: str) -> tuple[Decoder, tokenizers.Tokenizer]:
    """Random weights, and a tokenizer of the text; or both from the folder to start from."""
    if options.start:
        return load_model(options.start, jnp.float32), load_tokenizer(options.start).backend
    tokenizer = (
        load_tokenizer(options.tokenizer).backend
        if options.tokenizer
        else train_tokenizer(text, options.vocab_size)
    )
    if options.family == "deepseek":
        return deepseek(options, tokenizer.get_vocab_size()), tokenizer
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.heads // 4,
        head_dim=options.hidden // options.heads,
        max_position_embeddings=max(phase.context for phase in options.phases),
        tie_word_embeddings=True,
    )
    return Transformer(config, rngs=nnx.Rngs(options.seed)), tokenizer


def deepseek(options: argparse.Namespace, vocab_size: int) -> Decoder:
    """A DeepSeek V3 whose first layer is dense and whose other layers have experts."""
    width = options.hidden // options.heads
    config = DeepseekConfig(
        vocab_size=vocab_size,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        moe_intermediate_size=options.expert_width,
        num_layers=options.layers,
        num_dense_layers=1,
        num_heads=options.heads,
        q_lora_rank=None,
        kv_lora_rank=options.latent,
        qk_nope_head_dim=width,
        qk_rope_head_dim=options.rotated,
        v_head_dim=width,
        router=RouterConfig("noaux_tc", options.experts, 2, normalize=True),
        max_position_embeddings=max(phase.context for phase in options.phases),
        tie_word_embeddings=True,
    )
    return DeepseekTransformer(config, rngs=nnx.Rngs(options.seed))


def make(options: argparse.Namespace) -> None:
    """Train, save, then evaluate what was saved."""
    wall, cpu = time.perf_counter(), time.process_time()
    train_text, held_out_text = split_text(options.text)
    model, tokenizer = first_model(options, train_text)
    train_ids = np.array(tokenizer.encode(train_text).ids, np.int32)
    held_out_ids = np.array(tokenizer.encode(held_out_text).ids, np.int32)
    held_out_bytes = len(held_out_text.encode())
    parameters = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(
        f"{parameters:,} parameters, {len(train_ids):,} tokens, "
        f"{len(train_text.encode()) / len(train_ids):.2f} bytes per token",
        flush=True,
    )

    history = train(model, train_ids, held_out_ids, held_out_bytes, options)
    graph, state = nnx.split(model)
    save_model(nnx.merge(graph, jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)), options.out)
    tokenizer.save(str(options.out / "tokenizer.json"), pretty=False)
    run = {
        "phases": [f"{phase.context}:{phase.steps}" for phase in options.phases],
        "flags": {name: getattr(options, name) for name in RECORDED_FLAGS},
        "wall_seconds": round(time.perf_counter() - wall),
        "cpu_seconds": round(time.process_time() - cpu),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
        "history": history,
    }
    before = json.loads((options.start / RECORD).read_text())["runs"] if options.start else []
    runs = [*before, run]

    saved = load_model(options.out, dtype=jnp.float32)
    record = {
        "nats_per_byte": round(nats_per_byte(saved, held_out_ids, held_out_bytes), 4),
        "nats_per_byte_by_position": nats_by_position(saved, held_out_ids, held_out_bytes),
        "held_out_bytes": held_out_bytes,
        "parameters": parameters,
        "train_tokens": len(train_ids),
        "steps": sum(int(phase.split(":")[1]) for run in runs for phase in run["phases"]),
        "wall_seconds": sum(run["wall_seconds"] for run in runs),
        "cpu_seconds": sum(run["cpu_seconds"] for run in runs),
        "text": {
            "name": options.text.name,
            "sha256": hashlib.sha256(options.text.read_bytes()).hexdigest(),
        },
        "runs": runs,
    }
    (options.out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: value for name, value in record.items() if name != "runs"}, indent=1))
    print(sample(saved, tokenizer, "First Citizen:\n", 200, seed=0))


def evaluate(options: argparse.Namespace) -> None:
    """Print a saved model's nats per byte on the last tenth of the text."""
    _, held_out = split_text(options.text)
    model = load_model(options.evaluate, dtype=jnp.float32)
    ids = np.array(load_tokenizer(options.evaluate).encode(held_out), np.int32)
    num_bytes = len(held_out.encode())
    figures = {
        "nats_per_byte": round(nats_per_byte(model, ids, num_bytes), 4),
        "nats_per_byte_by_position": nats_by_position(model, ids, num_bytes),
        "held_out_bytes": num_bytes,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    arguments = parse_arguments()
    make(arguments) if arguments.out else evaluate(arguments)
