"""The layouts this project knows, one declaration each. Adding one is a line here."""

from paged.layouts.layout import Layout
from paged.names import unknown_name

FLASH_ATTN = Layout("flash_attn", "kv block slot head dim")
FLASHINFER = Layout("flashinfer", "block kv slot head dim")
FLASHINFER_HND = Layout("flashinfer_hnd", "block kv head slot dim")
PALLAS = Layout("pallas", "block slot (head kv) dim")
PACKED = Layout("packed", "block head slot (kv dim)")
# "pallas" as a TPU's memory wants it: whole 32-bit words of K and V beside each other, whole lanes.
TPU_PACKED = Layout("tpu_packed", "block slot (head kv) dim", lanes=128, words=True)
MLA = Layout("mla", "block slot latent")
# "mla" in whole lanes, which a TPU's memory has anyway: so that a block is copied as it lies there.
TPU_MLA = Layout("tpu_mla", "block slot latent", lanes=128)

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        *(FLASH_ATTN, FLASHINFER, FLASHINFER_HND, PALLAS, PACKED, TPU_PACKED),
        *(MLA, TPU_MLA),
    )
}
"""By name, in the order in which `layout="auto"` tries them where a backend has no preference."""


def get_layout(layout: str | Layout) -> Layout:
    """A layout by name; a `Layout` passes through, so that callers may bring their own.

    Raises:
        ValueError: no layout of that name.
    """
    if isinstance(layout, Layout):
        return layout
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    return LAYOUTS[layout]
