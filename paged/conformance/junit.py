"""A report as JUnit XML, which every CI service shows."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from paged.conformance.run import Run, Shown

# Characters that XML 1.0 has no way to write.
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(runs: Sequence[Run]) -> str:
    """One suite for each backend and layout, one test case for each result.

    A refusal that the contract asks for is a test that passed; its reason is in the output.
    """
    root = ElementTree.Element("testsuites", name="paged conform")
    for run in runs:
        for layout in run.layouts:
            results = [result for result in run.results if result.layout == layout]
            suite = ElementTree.SubElement(root, "testsuite", _counts(results))
            suite.set("name", f"{run.name} on {layout}")
            suite.extend(_test_case(run, result) for result in results)
    _count_all(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(run: Run, result: Shown) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase",
        classname=f"paged.conformance.{run.name}.{result.layout}",
        name=f"{result.name}[{result.dtype}]" if result.dtype else result.name,
        time=f"{result.seconds:.3f}",
    )
    reason = _legal(result.reason)
    if result.status == "failed":
        failure = ElementTree.SubElement(element, "failure", message=reason)
        failure.set("type", result.rule.partition(" (")[0])
        failure.text = f"{reason}\n{result.exposes}\nreproduce: {result.command}"
    elif result.status == "not_run":
        ElementTree.SubElement(element, "skipped", message=reason)
    elif result.status == "refused":
        ElementTree.SubElement(element, "system-out").text = f"refused: {reason}"
    return element


def _counts(results: Sequence[Shown]) -> dict[str, str]:
    return {
        "tests": str(len(results)),
        "failures": str(sum(result.status == "failed" for result in results)),
        "errors": "0",
        "skipped": str(sum(result.status == "not_run" for result in results)),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }


def _count_all(root: ElementTree.Element) -> None:
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
