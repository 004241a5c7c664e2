"""Tables and the plot, of figures that are made up."""

import pytest
from typer.testing import CliRunner

from paged.cli import app
from paged.cli.lab_table import by_cost, markdown_table, text_table
from paged.lab import TARGETS, measure, requirements
from paged.lab.asks import Sizes
from paged.lab.compile import Compiled
from paged.lab.measure import Measurement
from paged.lab.roofline import Total, Unknown
from paged.layouts import PALLAS, TPU_MLA, TPU_PACKED


def measured(kernel, target, layout, block_size, scheduled, *, hbm=4.0):
    return Measurement(
        kernel,
        Sizes().problem(layout, block_size),
        TARGETS[target],
        "attend",
        Compiled("compiled"),
        per_token=Unknown("loops")
        if scheduled is None
        else Total(scheduled, scheduled, scheduled / 2),
        hbm_cycles=hbm,
        matmul_cycles=0.1,
    )


FOUND = [
    measured("ours", "v6e", TPU_PACKED, 64, 2.0),
    measured("ours", "v6e", TPU_PACKED, 16, 3.0),
    measured("xla", "v6e", PALLAS, 64, 10.0),
    measured("ours", "v6e", TPU_MLA, 64, 1.0, hbm=1.5),
    measured("ours", "v7x", TPU_PACKED, 16, 5.0, hbm=2.0),
    measured("xla", "v7x", PALLAS, 64, None, hbm=2.0),
]


def test_each_is_a_multiple_of_hbm_and_of_the_best_that_serves_the_same():
    heading, *lines = text_table(FOUND)
    found = [(line[heading.index("of HBM")], line[heading.index("of best")]) for line in lines]
    assert found == [
        ("0.50x", "1.00x"),
        ("0.75x", "1.50x"),
        ("2.50x", "5.00x"),
        # A latent is no rival of keys and values, nor one target of another.
        ("0.67x", "1.00x"),
        ("2.50x", "1.00x"),
        ("-", "-"),
    ]
    assert sorted(FOUND, key=by_cost)[-1] is FOUND[-1]


def test_a_document_has_targets_side_by_side():
    assert markdown_table(FOUND) == [
        "| kernel | layout | block | v6e | of HBM | of best | v7x | of HBM | of best |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| ours | tpu_packed | 64 | 2.00 | 0.50x | 1.00x | - | - | - |",
        "| ours | tpu_packed | 16 | 3.00 | 0.75x | 1.50x | 5.00 | 2.50x | 1.00x |",
        "| xla | pallas | 64 | 10.00 | 2.50x | 5.00x | - | - | - |",
        "| HBM needs | | | 4.00 | | | 2.00 | | |",
        "| ours | tpu_mla | 64 | 1.00 | 0.67x | 1.00x | - | - | - |",
        "| HBM needs | | | 1.50 | | | - | | |",
    ]


def test_several_backends_are_compared_in_one_table(monkeypatch):
    asked = []

    def count(target, asks):
        asked.extend((target.name, backend.name, problem.layout.name) for backend, problem in asks)
        return [measured(b.name, target.name, p.layout, p.block_size, 2.0) for b, p in asks]

    monkeypatch.setattr(requirements, "_found", lambda module: True)
    monkeypatch.setattr(measure, "measure", count)
    command = ["lab", "compare", "--target", "v5e,v6e", "--backend", "pallas_tpu, xla"]
    command += ["--layout", "pallas", "--block-size", "64", "--markdown"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert asked == [
        (target, backend, "pallas")
        for target in ("v5e", "v6e")
        for backend in ("pallas_tpu", "xla")
    ]
    assert "| xla | pallas | 64 | 2.00 | 0.50x | 1.00x | 2.00 | 0.50x | 1.00x |" in done.stdout
    done = CliRunner().invoke(app, ["lab", "compare", "--backend", "xla,nope"])
    assert done.exit_code == 2
    assert "backend: got 'nope'" in done.stderr


def test_a_plot_is_the_same_file_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    from paged.lab.plot import plot_roofline

    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        plot_roofline(FOUND, path)
    text = paths[0].read_text()
    assert text == paths[1].read_text()
    for words in (
        "ours, tpu_packed",
        "xla, pallas",
        "v6e, 1640 GB/s",
        "waits for HBM",
        "blocks of",
    ):
        assert words in text
    with pytest.raises(ValueError, match="no kernel has figures"):
        plot_roofline(FOUND[-1:], tmp_path / "none.svg")
