"""Which backend serves an ask: strict names, reasons, targets, third parties."""

import importlib
import re
import sys
import textwrap

import numpy as np
import pytest

from paged import AttentionSpec, KVCacheSpec, UnsupportedError, resolve
from paged.backends import Unavailable, backend_names, import_backend, load_backend
from paged.backends.registry import ENTRY_POINT_GROUP
from paged.conformance import run_conformance
from paged.layouts import Layout, get_layout

OURS = ("pallas_tpu", "triton_jax", "triton", "cpu", "xla", "reference")
# What "auto" takes on a CPU; the native kernels need a compiler when the package is installed.
AUTO = "cpu" if load_backend("cpu").path else "xla"
SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5)
LATENT = AttentionSpec(4, 1, 8, scale=0.5, kv_lora_rank=6, qk_rope_head_dim=2)


class Picky:
    """A backend that serves one layout on one platform, and says why not otherwise."""

    def __init__(self, name="picky", platform="tpu", layouts=("pallas", "packed")):
        self.name = name
        self.platform = platform
        self.layouts = tuple(get_layout(layout) for layout in layouts)
        self.asked = []

    def unsupported(self, spec, layout, target, *, cache_spec=None, query_dtype=None):
        self.asked.append((layout.name, target, cache_spec, query_dtype))
        reasons = []
        if target != self.platform:
            reasons.append(f"runs on {self.platform}, not on {target}")
        if layout.name != "packed":
            reasons.append(f"no layout {layout.name}")
        return reasons

    def write(self, cache, key, value, slot_mapping):
        return cache

    def attend(self, query, cache, metadata, spec, *, sinks=None):
        raise NotImplementedError


@pytest.fixture
def fresh_registry():
    """Backends are loaded anew, before the test and after it."""
    load_backend.cache_clear()
    yield
    load_backend.cache_clear()


@pytest.fixture
def third_party(tmp_path, monkeypatch, fresh_registry):
    """Installs a distribution with these entry points and this module, by its files alone."""

    def install(entry_points, module=""):
        (tmp_path / "third_party_backend.py").write_text(textwrap.dedent(module))
        info = tmp_path / "third_party-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines]))
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    yield install
    sys.modules.pop("third_party_backend", None)


def test_auto_is_the_first_by_priority():
    chosen = resolve(SPEC)
    assert chosen.backend.name == AUTO
    assert chosen.layout in chosen.backend.layouts
    assert (chosen.target, chosen.spec) == ("cpu", SPEC)
    assert list(chosen.passed_over) == list(backend_names()[: backend_names().index(AUTO)])
    assert "runs on tpu, not on cpu" in chosen.passed_over["pallas_tpu"]


def test_auto_takes_a_layout_that_fits_the_spec():
    assert resolve(LATENT).layout.name == "mla"
    assert not resolve(SPEC).layout.is_latent


@pytest.mark.parametrize("name", ["xla", "reference"])
@pytest.mark.parametrize("layout", ["flash_attn", "flashinfer_hnd", "pallas"])
def test_a_name_and_a_layout_are_taken_at_their_word(name, layout):
    chosen = resolve(SPEC, backend=name, layout=layout)
    assert (chosen.backend.name, chosen.layout.name) == (name, layout)


def test_a_name_is_strict_and_gives_its_reasons():
    with pytest.raises(UnsupportedError) as caught:
        resolve(SPEC, backend="reference", target="tpu")
    assert "none serves any layout on tpu (reference: runs on cpu, not on tpu" in str(caught.value)
    assert "xla" not in str(caught.value), "a strict name falls back on no other"


def test_auto_lists_every_backend_with_its_reasons():
    with pytest.raises(UnsupportedError) as caught:
        resolve(LATENT, layout="pallas")
    message = str(caught.value)
    assert "none serves layout pallas on cpu" in message
    for name in backend_names():
        reasons = message.partition(f"{name}: ")[2].partition(" | ")[0]
        loaded = load_backend(name)
        if isinstance(loaded, Unavailable):
            assert loaded.reason in reasons
        elif getattr(loaded, "arrays", "jax") == "torch":
            assert "takes torch arrays, not jax" in reasons
        else:
            assert "layout pallas is for keys and values" in reasons


def test_auto_takes_a_backend_for_the_library_that_is_named():
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    assert resolve(SPEC, target="cuda", arrays="torch").backend.name == "triton"
    with pytest.raises(UnsupportedError, match="reference: takes numpy arrays, not torch"):
        resolve(SPEC, target="cpu", arrays="torch")
    assert resolve(SPEC, target="cuda", arrays="jax").backend.name in ("triton_jax", "xla")
    with pytest.raises(ValueError, match="arrays: got 'tf', expected one of jax, torch, numpy"):
        resolve(SPEC, arrays="tf")


def test_only_layouts_of_the_specs_kind_are_reasons():
    with pytest.raises(UnsupportedError) as caught:
        resolve(LATENT, backend="pallas_tpu", target="cpu")
    assert "runs on tpu, not on cpu" in str(caught.value)
    assert "for keys and values" not in str(caught.value)


def test_a_cache_is_of_the_library_that_the_backend_takes():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from paged.backends.triton.on_torch import TritonBackend

    backend = TritonBackend(interpret=True)
    cache = resolve(SPEC, backend=backend, layout="packed").allocate(3, 16, dtype="bfloat16")
    assert isinstance(cache.data, torch.Tensor)
    assert cache.dtype == "bfloat16"
    assert not cache.data.any()
    with pytest.raises(ValueError, match="num_blocks: got 1, expected at least 2"):
        resolve(SPEC, backend=backend).allocate(1, 16)


def test_a_torch_cache_has_scales_that_numbers_can_be_divided_by():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from paged.backends.triton.on_torch import TritonBackend

    attention = resolve(SPEC, backend=TritonBackend(interpret=True), layout="packed")
    scale = torch.tensor([0.5, 2.0], dtype=torch.bfloat16)
    assert attention.allocate(3, 16, dtype="int8", k_scale=scale).k_scale is scale
    with pytest.raises(ValueError, match=r"k_scale\[1\]: got nan, expected a positive number"):
        attention.allocate(3, 16, dtype="int8", k_scale=scale * torch.tensor([1, torch.nan]))
    with pytest.raises(ValueError, match="v_scale: got -1, expected a positive number"):
        attention.allocate(3, 16, dtype="int8", v_scale=-1)


@pytest.mark.parametrize("backend", [AUTO, "xla"])
def test_an_allocation_is_of_the_spec_and_layout_that_were_resolved(backend):
    attention = resolve(SPEC, backend=backend)
    cache_spec = KVCacheSpec.of(SPEC, block_size=16)
    for name, again in (("cache_spec", cache_spec), ("spec", cache_spec), ("layout", "packed")):
        with pytest.raises(TypeError, match=rf"^{name}: got .*, expected none here"):
            attention.allocate(3, 16, **{name: again})
    with pytest.raises(ValueError, match="sharding: got 'x', expected a Sharding, a Device or No"):
        attention.allocate(3, 16, sharding="x")


def test_specs_of_another_kind_are_refused():
    cache_spec = KVCacheSpec.of(SPEC, block_size=16)
    with pytest.raises(ValueError, match=r"^spec: got KVCacheSpec\(.*, expected an AttentionSpec"):
        resolve(cache_spec)
    for wrong in ("bfloat16", SPEC):
        with pytest.raises(ValueError, match=r"^cache_spec: got .*, expected a KVCacheSpec or Non"):
            resolve(SPEC, cache_spec=wrong)


def test_the_target_decides_and_not_the_host():
    chosen = resolve(SPEC, target="tpu")
    assert (chosen.backend.name, chosen.target) == ("pallas_tpu", "tpu")
    picky = Picky()
    assert resolve(SPEC, backend=picky, target="tpu").target == "tpu"
    with pytest.raises(UnsupportedError, match="picky: runs on tpu, not on cpu"):
        resolve(SPEC, backend=picky)


def test_an_instance_is_asked_layout_by_layout():
    picky = Picky(platform="cpu")
    assert resolve(SPEC, backend=picky).layout.name == "packed"
    assert [layout for layout, *_ in picky.asked] == ["pallas", "packed"]


def test_what_is_known_already_reaches_the_backend():
    picky = Picky(platform="cpu")
    cache_spec = KVCacheSpec.of(SPEC, block_size=4)
    resolve(SPEC, backend=picky, layout="packed", cache_spec=cache_spec, query_dtype="bfloat16")
    assert picky.asked == [("packed", "cpu", cache_spec, "bfloat16")]


def test_what_was_passed_over_is_kept(third_party, monkeypatch):
    from paged.backends import registry

    priority = {"missing": "no_such_package.backend:Backend", **registry._BUILTIN}
    monkeypatch.setattr(registry, "_BUILTIN", priority)
    chosen = resolve(SPEC)
    assert chosen.backend.name == AUTO
    missing = {"missing": ["needs no_such_package, which is not installed"]}
    assert chosen.passed_over.items() >= missing.items()
    assert all(chosen.passed_over.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"backend": "cuda"},
            "backend: got 'cuda', expected one of pallas_tpu, triton_jax, triton, cpu, xla, "
            "reference",
        ),
        ({"layout": [1]}, r"layout: got \[1\], expected one of flash_attn"),
        ({"layout": "nhd"}, "layout: got 'nhd', expected one of flash_attn"),
        ({"target": "gpu"}, "target: got 'gpu', expected one of cpu, cuda, rocm, tpu"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(arguments, message):
    with pytest.raises(ValueError, match=message):
        resolve(SPEC, **arguments)


@pytest.mark.parametrize(
    ("cache_spec", "message"),
    [
        (KVCacheSpec(4, 8, 4), "cache_spec.num_kv_heads: got 4, expected 2 as in spec"),
        (KVCacheSpec(2, 16, 4), "cache_spec.head_dim: got 16, expected 8 as in spec"),
        (KVCacheSpec.of(LATENT, block_size=4), "cache_spec.num_kv_heads: got 1, expected 2"),
    ],
)
def test_a_cache_spec_that_contradicts_the_spec_is_refused(cache_spec, message):
    with pytest.raises(ValueError, match=message):
        resolve(SPEC, cache_spec=cache_spec)


def test_what_is_no_backend_is_refused():
    with pytest.raises(TypeError, match=r"backend: 3 is no backend, it lacks name, platform"):
        resolve(SPEC, backend=3)
    with pytest.raises(TypeError, match="got the class Picky, expected an instance of it"):
        resolve(SPEC, backend=Picky)


@pytest.mark.parametrize(
    "layouts", [("flashinfer",), {"pallas", "packed"}, "packed", {get_layout("packed")}, None]
)
def test_layouts_that_are_no_layouts_in_an_order_are_refused(layouts):
    backend = Picky()
    backend.layouts = layouts
    message = re.escape(f"backend: picky has layouts {layouts!r}, expected a tuple of Layouts")
    with pytest.raises(TypeError, match=message):
        resolve(SPEC, backend=backend)
    with pytest.raises(TypeError, match=message):
        run_conformance(backend)


def test_a_third_party_whose_layouts_are_names_is_refused(third_party):
    module = """
        from paged.backends.reference import ReferenceBackend

        class Named(ReferenceBackend):
            layouts = ("flashinfer",)
    """
    third_party({"named": "third_party_backend:Named"}, module)
    with pytest.raises(TypeError, match=r"third_party_backend:Named has layouts .*get_layout giv"):
        load_backend("named")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def __init__(self, device): ...", r"TypeError: .*missing 1 .*argument: 'device'"),
        ("def __init__(self): raise KeyError('device')", "KeyError: 'device'"),
        ("def __init__(self): raise RuntimeError('no device')", "RuntimeError: no device"),
    ],
)
def test_a_third_party_that_cannot_be_made_is_named(third_party, body, told):
    third_party({"fussy": "third_party_backend:Fussy"}, f"class Fussy:\n    {body}")
    message = f"^backend: third_party_backend:Fussy cannot be made without arguments: {told}$"
    with pytest.raises(ValueError, match=message) as caught:
        load_backend("fussy")
    assert type(caught.value.__cause__).__name__ == told.partition(":")[0]


def test_a_third_party_is_found_after_our_own(third_party):
    module = """
        from paged.backends import Capabilities, KernelBackend
        from paged.layouts import PALLAS

        class Quick(KernelBackend):
            name, platform, layouts = "quick", "any", (PALLAS,)
            capabilities = Capabilities(window=False)
            def _write(self, cache, key, value, slot_mapping): ...
            def _attend(self, query, cache, metadata, spec, sinks): ...
    """
    third_party({"quick": "third_party_backend:Quick", "also": "absent_module:X"}, module)
    assert backend_names() == (*OURS, "also", "quick")
    assert "third_party_backend" not in sys.modules, "a listing imports nothing"
    assert resolve(SPEC, backend="quick").layout.name == "pallas"
    with pytest.raises(UnsupportedError, match="quick: no window"):
        resolve(AttentionSpec(4, 2, 8, scale=0.5, window=3), backend="quick")
    assert load_backend("also") == Unavailable(
        "also", "needs absent_module, which is not installed"
    )
    with pytest.raises(UnsupportedError, match="also: needs absent_module, which is not installed"):
        resolve(SPEC, backend="also")


def test_a_third_party_cannot_replace_our_own(third_party):
    third_party({"xla": "third_party_backend:Other"}, "class Other: ...")
    assert backend_names() == OURS
    assert type(load_backend("xla")).__module__.startswith("paged.backends.xla")


def test_a_third_partys_missing_package_is_its_reason(third_party):
    third_party({"needy": "third_party_backend:Needy"}, "import a_package_nobody_has")
    assert load_backend("needy") == Unavailable(
        "needy", "needs a_package_nobody_has, which is not installed"
    )


def test_a_third_partys_own_fault_is_not_hidden(third_party):
    third_party({"broken": "third_party_backend:Broken"}, "1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_backend("broken")


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        ("class Half:\n    name = 'half'", "platform, layouts, unsupported, write, attend"),
        ("Half = 7", "name, platform, layouts, unsupported, write, attend"),
    ],
)
def test_a_third_party_that_is_no_backend_is_refused(third_party, module, lacking):
    third_party({"half": "third_party_backend:Half"}, module)
    message = f"backend: third_party_backend:Half is no backend, it lacks {lacking}$"
    with pytest.raises(TypeError, match=message):
        load_backend("half")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("paged.backends.xla", "got 'paged.backends.xla', expected package.module:Class"),
        (":Class", "got ':Class', expected package.module:Class"),
        ("paged.backends.xla:Nothing", "paged.backends.xla has no 'Nothing'"),
    ],
)
def test_a_reference_of_another_form_is_refused(where, message):
    with pytest.raises(ValueError, match=message):
        import_backend(where)


def test_a_resolution_allocates_what_its_backend_reads():
    chosen = resolve(SPEC, layout="pallas")
    cache = chosen.allocate(num_blocks=5, block_size=4, dtype="bfloat16")
    assert (cache.layout.name, cache.dtype, cache.num_blocks) == ("pallas", "bfloat16", 5)


def test_a_resolution_refuses_a_cache_that_its_backend_does_not():
    class Coarse(Picky):
        def unsupported(self, spec, layout, target, *, cache_spec=None, query_dtype=None):
            too_small = cache_spec is not None and cache_spec.block_size < 16
            return ["block_size below 16"] if too_small else []

    chosen = resolve(SPEC, backend=Coarse(), target="tpu")
    with pytest.raises(UnsupportedError, match="backend picky: block_size below 16"):
        chosen.allocate(num_blocks=5, block_size=8)


def test_an_own_layout_goes_to_the_backend_that_reads_any():
    own = Layout("own", "block head (dim kv) slot")
    assert resolve(SPEC, layout=own).layout is own


@pytest.mark.parametrize("shape", [(1, 2, 32), (1, 2, 65), (1, 1, 64)])
def test_rows_of_other_heads_than_the_spec_has_are_refused(shape):
    """The layout pads heads of 64 to 128 lanes, and could not tell."""
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
    attention = resolve(spec, layout="tpu_packed", backend="xla")
    cache = attention.allocate(num_blocks=2, block_size=16)
    rows, fitting = np.ones(shape, np.float32), np.ones((1, 2, 64), np.float32)
    slots = np.array([16], np.int32)
    with pytest.raises(ValueError, match=r"key: got shape .*, expected \(tokens, 2, 64\)"):
        attention.write(cache, rows, rows, slots)
    with pytest.raises(ValueError, match=r"value: got shape .*, expected \(tokens, 2, 64\)"):
        attention.write(cache, fitting, rows, slots)
    if shape[2] < 64:
        with pytest.raises(ValueError, match=r"value: got shape .* as key has"):
            attention.backend.write(cache, fitting, rows, slots)
