"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from paged.conformance.environment import Environment
from paged.conformance.html_style import STYLE
from paged.conformance.matrix import WORDS, Cell, by_reason, counted, matrix
from paged.conformance.report import Status
from paged.conformance.run import Run, Shown


def to_html(
    runs: Sequence[Run],
    environment: Environment,
    *,
    left_out: Mapping[str, str] | None = None,
) -> str:
    """The whole page.

    Args:
        runs: one for each subject.
        environment: where they were made.
        left_out: backends that were not tried, and why.
    """
    failed = sum(len(run.failures) for run in runs)
    names = ", ".join(run.name for run in runs)
    verdict = f"{failed} failed" if failed else "nothing failed"
    body = [
        f"<h1>Conformance of {escape(names)}</h1>",
        f'<p class="banner {"failed" if failed else "passed"}">{_sentence(runs, failed)}</p>',
        _environment(environment, sum(run.seconds for run in runs)),
        *(_backend(run, index) for index, run in enumerate(runs)),
        _left_out(left_out or {}),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An icon of its own, or browsers ask the server for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(names)}: {verdict}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _sentence(runs: Sequence[Run], failed: int) -> str:
    total = sum(len(run.results) for run in runs)
    if not failed:
        return f"Nothing failed among {total:,} results."
    rules = dict.fromkeys(result.rule for run in runs for result in run.failures)
    broken = "; ".join(rule for rule in rules if rule)
    return f"{failed:,} of {total:,} results failed. Broken: {escape(broken)}."


def _environment(environment: Environment, seconds: float) -> str:
    rows = environment.rows() | {"took": f"{seconds:,.1f} s"}
    items = "".join(
        f"<dt>{escape(name)}</dt><dd{_MONO if name == 'command' else ''}>{escape(text)}</dd>"
        for name, text in rows.items()
    )
    return f"<dl>{items}</dl>"


_MONO = ' class="mono"'
_LEGEND = (
    '<p class="faint">Rows are features, the first part of a case\'s name. Refused: not claimed, '
    "and refused with a reason, as the contract asks.</p>"
)


def _backend(run: Run, index: int) -> str:
    called = "" if run.asked == run.name else f" ({escape(run.asked)})"
    parts = [
        f'<section id="backend-{index}">',
        f"<h2>{escape(run.name)}{called}</h2>",
        f"<p>{escape(counted(run.summary))}; {run.seconds:,.1f} s.</p>",
        _matrix(run, index),
        _LEGEND,
        _failures(run, index),
        _reasons(run.results, "not_run", "Not run, and why", is_open=True),
        _reasons(run.results, "refused", "Refused, as the contract asks", is_open=False),
        _all_results(run),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _matrix(run: Run, index: int) -> str:
    layouts = run.layouts
    head = "".join(f'<th scope="col">{escape(layout)}</th>' for layout in layouts)
    rows = [
        f'<tr><th scope="row">{escape(feature)}</th>'
        + "".join(_cell(cells[layout], f"{_anchor(index, layout, feature)}") for layout in layouts)
        + "</tr>"
        for feature, cells in matrix(run).items()
    ]
    return (
        f'<div class="scroll"><table class="matrix"><thead><tr><th scope="col">feature</th>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: Cell, anchor: str) -> str:
    counts = cell.counts
    if not counts:
        return "<td></td>"
    word = f"{WORDS[cell.status]} {counts[cell.status]}"
    if cell.status == "failed":
        word = f'<a href="#{escape(anchor)}">{word}</a>'
    others = ", ".join(f"{WORDS[s]} {n}" for s, n in counts.items() if s != cell.status)
    small = f"<small>{others}</small>" if others else ""
    return f'<td class="{cell.status}">{word}{small}</td>'


def _anchor(index: int, layout: str, feature: str) -> str:
    return f"failed-{index}-{layout}-{feature}"


def _failures(run: Run, index: int) -> str:
    failures = run.failures
    if not failures:
        return ""
    parts = [f"<h3>Failed ({len(failures):,})</h3>"]
    seen: set[str] = set()
    for result in failures:
        anchor = _anchor(index, result.layout, result.feature)
        identity = "" if anchor in seen else f' id="{escape(anchor)}"'
        seen.add(anchor)
        parts.append(_failure(result, identity))
    return "\n".join(parts)


def _failure(result: Shown, identity: str) -> str:
    seen = result.reason.removeprefix(f"{result.rule}: ").removesuffix(f" at {result.where}")
    error = "" if result.max_error is None else f"{result.max_error:.6g}"
    rows = {"broken": result.rule, "seen": seen, "largest error": error, "at": result.where}
    rows |= {"exposes": result.exposes, "source": result.source}
    items = "".join(
        f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows.items() if text
    )
    return (
        f'<article class="failure"{identity}><h4><code>{escape(result.name)}</code> on '
        f"{escape(result.place)}</h4><dl>{items}</dl>"
        f"<pre>{escape(result.command)}</pre></article>"
    )


def _reasons(results: Iterable[Shown], status: Status, title: str, *, is_open: bool) -> str:
    grouped = by_reason(results, status)
    if not grouped:
        return ""
    rows = "".join(
        f'<tr><td class="right">{len(group)}</td><td>{escape(reason)}</td>'
        f"<td>{_case_names(group)}</td></tr>"
        for reason, group in grouped.items()
    )
    table = (
        f'<div class="scroll"><table><thead><tr><th>results</th><th>reason</th><th>cases</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )
    total = sum(map(len, grouped.values()))
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{escape(title)} ({total:,})</summary>{table}</details>"


def _case_names(results: Iterable[Shown]) -> str:
    return ", ".join(
        f"<code>{escape(name)}</code>" for name in dict.fromkeys(result.name for result in results)
    )


def _all_results(run: Run) -> str:
    rows = "".join(
        f'<tr><td><code title="{escape(result.exposes)}">{escape(result.name)}</code></td>'
        f"<td>{escape(result.layout)}</td><td>{escape(result.dtype)}</td>"
        f'<td class="{result.status}">{WORDS[result.status]}</td>'
        f'<td class="right">{"" if result.max_error is None else f"{result.max_error:.3g}"}</td>'
        f'<td class="right">{result.seconds:.2f}</td></tr>'
        for result in run.results
    )
    heads = ("case", "layout", "dtype", "", "largest error", "seconds")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"<details><summary>All results ({len(run.results):,})</summary>"
        f'<div class="scroll"><table class="results"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _left_out(left_out: Mapping[str, str]) -> str:
    if not left_out:
        return ""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(reason)}</td></tr>"
        for name, reason in left_out.items()
    )
    return (
        "<h2>Backends not run</h2><table><thead><tr><th>backend</th><th>why</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
