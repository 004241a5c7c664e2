"""JUnit XML: counts that CI services add up, and failures that can be run again."""

from dataclasses import replace
from xml.etree import ElementTree

from failing import failing_run

from paged.conformance.junit import to_junit


def test_suites_and_counts():
    run = failing_run()
    root = ElementTree.fromstring(to_junit([run]).encode())
    assert [suite.get("name") for suite in root] == [
        f"{run.name} on flashinfer",
        f"{run.name} on packed",
    ]
    summary = run.summary
    assert root.get("tests") == str(len(run.results))
    assert root.get("failures") == str(summary["failed"])
    assert root.get("skipped") == str(summary["not_run"])
    assert len(root.findall(".//testcase")) == len(run.results)
    assert len(root.findall(".//failure")) == summary["failed"]
    assert len(root.findall(".//skipped")) == summary["not_run"]
    refused = [out.text for out in root.findall(".//system-out")]
    assert len(refused) == summary["refused"]
    assert all("no sinks" in text for text in refused)


def test_a_failure_says_why_and_how_to_see_it_again():
    run = failing_run()
    root = ElementTree.fromstring(to_junit([run]).encode())
    failure = root.find(".//testcase[@name='window/decode[float32]']/failure")
    assert failure.get("type") == "rule 9"
    assert failure.get("message") == run.failures[0].reason
    assert "paged conform my_pkg.my_mod:WindowOffByOne --layout flashinfer" in failure.text


def test_characters_that_xml_cannot_hold():
    result = replace(failing_run().failures[0], reason="nul \0, escape \x1b[1m, & < \ud800")
    run = replace(failing_run(), results=(result,))
    root = ElementTree.fromstring(to_junit([run]).encode())
    assert root.find(".//failure").get("message") == "nul \ufffd, escape \ufffd[1m, & < \ufffd"
