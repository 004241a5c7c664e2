"""The HTML report: what it says, that it needs nothing else, and that a browser takes it."""

import os
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser

import pytest
from failing import MARKUP, failing_run

from paged.conformance.environment import Environment
from paged.conformance.html import to_html
from paged.conformance.matrix import matrix

LEFT_OUT = {"triton": "runs on cuda, this host has cpu"}
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VOID = {"meta", "link", "br"}


@pytest.fixture(scope="module")
def page():
    return to_html(
        [failing_run()],
        Environment.here(command="paged conform faulty --html report.html", seed=0),
        left_out=LEFT_OUT,
    )


class Page(HTMLParser):
    """Tags in order, the rows of each table, and all text outside the style."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.tables, self.text, self.ids = [], "", set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        self.ids |= {value for name, value in attrs if name == "id"}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data + " "


def assert_shows_the_failing_run(text):
    """The same for the file as written and for what a browser made of it."""
    found = Page(text)
    assert found.open == [], "a tag is not closed"
    run = failing_run()
    (table, *_) = found.tables
    rows = {row[0].strip(): [" ".join(cell.split()) for cell in row[1:]] for row in table}
    assert rows["feature"] == ["flashinfer", "packed"]
    assert rows["batch"] == ["pass 2", "pass 2"]
    assert rows["window"] == ["fail 2", "fail 2"]
    assert rows["sinks"] == ["refused 2", "refused 2"]
    assert rows["lengths"] == ["not run 2", "not run 2"]
    assert set(rows) == {"feature", *matrix(run)}
    for failure in run.failures:
        assert failure.command in found.text
        assert failure.where in found.text
    assert "rule 9 (a window W shows the last W keys, the token's own included)" in found.text
    assert "4 of 18 results failed" in " ".join(found.text.split())
    assert "large: runs with full=True (--full)" in found.text
    assert "no sinks" in found.text
    assert "runs on cuda, this host has cpu" in found.text
    assert "paged conform faulty --html report.html" in found.text
    assert MARKUP in found.text
    return found


def test_page_shows_the_matrix_and_each_failure(page):
    assert_shows_the_failing_run(page)


def test_page_needs_nothing_else(page):
    found = Page(page)
    assert not {"script", "img", "iframe", "object", "embed"} & set(found.tags)
    addresses = [value for _, name, value in found.attributes if name in ("src", "href")]
    assert all(address.startswith(("#", "data:")) for address in addresses), addresses
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    assert "@import" not in page
    assert "url(" not in page
    assert MARKUP not in page
    assert escape(MARKUP) in page


def test_links_lead_to_failures(page):
    found = Page(page)
    links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href")]
    assert len(links) == 2, "one for each layout"
    assert {link.removeprefix("#") for link in links} <= found.ids


def test_every_result_is_listed(page):
    rows = [
        row for table in Page(page).tables if table[0][-1].strip() == "seconds" for row in table
    ]
    assert len(rows) == 1 + len(failing_run().results)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path")
def test_a_browser_shows_it_without_console_errors(page, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    dom, complaints = opened(file, tmp_path / "profile")
    assert_shows_the_failing_run(dom)
    assert complaints == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path")
def test_a_console_error_would_be_seen(tmp_path):
    file = tmp_path / "bad.html"
    file.write_text("<!doctype html><title>bad</title><script>undefinedFunction()</script>")
    _, complaints = opened(file, tmp_path / "profile")
    assert any("undefinedFunction is not defined" in line for line in complaints)


def opened(file, profile):
    """The page as headless Chromium made it, and what its console said."""
    done = subprocess.run(
        [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom"),
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(profile)},
    )
    return done.stdout, [
        line for line in done.stderr.splitlines() if re.search(r":CONSOLE[:(]", line)
    ]
