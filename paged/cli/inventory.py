"""`paged backends` and `paged layouts`: what there is, and what of it can be used."""

from typing import Annotated, Any

import typer

from paged.cli.console import JsonOption, print_json, print_table
from paged.cli.models import model_cache


def backends(
    target: Annotated[
        str | None, typer.Option(help="Platform to compile for; this host's by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Every backend by priority: usable for a plain model on this host, or why not.

    \b
    Example:
      paged backends --json
      paged backends --target tpu
    """
    from paged.backends.registry import TARGETS, backend_names, default_target

    target = target or default_target()
    if target not in TARGETS:
        raise ValueError(f"target: got {target!r}, expected one of {', '.join(TARGETS)}")
    rows = [_backend_row(name, target) for name in backend_names()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("backend", "platform", "usable", "layouts", "why not"),
        [
            (
                row["name"],
                row["platform"] or "-",
                "yes" if row["usable"] else "no",
                ", ".join(row["layouts"]),
                "; ".join(row["reasons"]),
            )
            for row in rows
        ],
        title=f"on {target}",
    )


def _backend_row(name: str, target: str) -> dict[str, Any]:
    from paged.backends import Unavailable, load_backend
    from paged.spec import AttentionSpec

    plain = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=128, scale=128**-0.5)
    latent = AttentionSpec(
        num_heads=8,
        num_kv_heads=1,
        head_dim=576,
        scale=576**-0.5,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
    )
    row: dict[str, Any] = {"name": name, "platform": None, "usable": False}
    row |= {"reasons": [], "layouts": []}
    try:
        backend = load_backend(name)
    except (TypeError, ValueError) as error:
        # A third party's listing that names no backend is its own row's matter.
        return {**row, "reasons": [str(error)]}
    if isinstance(backend, Unavailable):
        return {**row, "reasons": [backend.reason]}
    asked = [
        backend.unsupported(latent if layout.is_latent else plain, layout, target)
        for layout in backend.layouts
    ]
    usable = any(not reasons for reasons in asked)
    against = dict.fromkeys(reason for reasons in asked for reason in reasons)
    return {
        **row,
        "platform": backend.platform,
        "usable": usable,
        "reasons": [] if usable else list(against),
        "layouts": [layout.name for layout in backend.layouts],
    }


def layouts(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="A preset, a config.json, a Hugging Face folder or a built-in; several side by "
            "side. llama-3-8b by default.",
        ),
    ] = None,
    num_blocks: Annotated[int, typer.Option(help="Blocks in the shape shown.")] = 1024,
    dtype: Annotated[
        str | None, typer.Option(help="Storage type; the model's own by default.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    tp: Annotated[int, typer.Option(help="Ranks of tensor parallelism.")] = 1,
    target: Annotated[str, typer.Option(help="Platform; a TPU pads pages.")] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Every layout: its pattern, and one layer's array and page for a model.

    Of several models the pages alone are shown; their JSON is an object by model.

    \b
    Example:
      paged layouts llama-3-8b --dtype bfloat16 --block-size 16
      paged layouts llama-2-13b llama-3-70b deepseek-v3 gemma-3-27b
      paged layouts deepseek-v3 --target tpu --json
    """
    from paged.backends.registry import TARGETS
    from paged.layouts import check_slots_fit

    if target not in TARGETS:
        raise ValueError(f"target: got {target!r}, expected one of {', '.join(TARGETS)}")
    models = models or ["llama-3-8b"]
    check_slots_fit(num_blocks, block_size)
    caches = {model: model_cache(model) for model in models}
    specs = {
        model: cache.spec(block_size=block_size, dtype=dtype, tp=tp)
        for model, cache in caches.items()
    }
    found = {model: _layout_rows(spec, num_blocks, target) for model, spec in specs.items()}
    if as_json:
        print_json(found[models[0]] if len(found) == 1 else found)
        return
    kept = {
        model: f"{caches[model].attention}, {spec.values_per_token:,} values a token and layer, "
        f"{spec.dtype}"
        for model, spec in specs.items()
    }
    asked = f"{block_size} tokens a block, on {target}"
    if len(found) > 1:
        print_table(
            ("layout", *found),
            [
                ("", *kept.values()),
                *(
                    (rows[0]["name"], *(_page(row, "-") for row in rows))
                    for rows in zip(*found.values(), strict=True)
                ),
            ],
            title=f"bytes of a page (of a token in it), {asked}",
        )
        return
    print_table(
        ("layout", "pattern", "shape", "page bytes (a token's)"),
        [
            (
                row["name"],
                row["pattern"],
                "x".join(map(str, row["shape"])) if row["shape"] else "-",
                _page(row, "cannot hold this cache"),
            )
            for row in found[models[0]]
        ],
        title=f"{models[0]}: {kept[models[0]]}, {asked}",
    )


def _layout_rows(spec: Any, num_blocks: int, target: str) -> list[dict[str, Any]]:
    from paged.layouts import LAYOUTS

    rows: list[dict[str, Any]] = []
    for layout in LAYOUTS.values():
        row: dict[str, Any] = {"name": layout.name, "pattern": layout.pattern}
        if reasons := layout.refusals(spec):
            none = {"shape": None, "page_bytes": None, "bytes_per_token": None}
            rows.append({**row, **none, "reason": "; ".join(reasons)})
            continue
        page_bytes = layout.page_bytes(spec, target=target)
        rows.append(
            {
                **row,
                "shape": list(layout.shape(num_blocks, spec)),
                "page_bytes": page_bytes,
                # A block's share, rounded up.
                "bytes_per_token": -(-page_bytes // spec.block_size),
            }
        )
    return rows


def _page(row: dict[str, Any], none: str) -> str:
    return f"{row['page_bytes']:,} ({row['bytes_per_token']:,})" if row["page_bytes"] else none
