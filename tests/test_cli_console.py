"""Tables that are wider than the terminal."""

import pytest

from paged.cli.console import print_columns, print_table, wrapped


@pytest.fixture
def terminal(monkeypatch):
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


def test_columns_by_hand(terminal, capsys):
    terminal(80)
    print_columns([["name", "share", "note", "none"], ["a", "5.0", "x", "-"], ["bc", "-", "", "-"]])
    assert capsys.readouterr().out == (
        "name  share  note  none\na       5.0  x     -\nbc        -        -\n"
    )


def test_columns_without_room_follow_below(terminal, capsys):
    lines = [["name", "one", "two", "three"], ["a", "1", "22", "333"], ["b", "4", "55", "666"]]
    terminal(16)
    print_columns(lines)
    assert capsys.readouterr().out == (
        "name  one  two\na       1   22\nb       4   55\n\nname  three\na       333\nb       666\n"
    )


def test_lines_that_begin_alike_are_numbered_where_they_are_parted(terminal, capsys):
    lines = [["name", "one", "two"], ["same", "1", "22"], ["same", "4", "55"]]
    terminal(12)
    print_columns(lines)
    assert capsys.readouterr().out == (
        "   name  one\n1  same    1\n2  same    4\n\n   two\n1   22\n2   55\n"
    )
    terminal(80)
    print_columns(lines)
    assert capsys.readouterr().out == "name  one  two\nsame    1   22\nsame    4   55\n"


def test_a_column_that_is_too_wide_alone_is_whole(terminal, capsys):
    terminal(5)
    print_columns([["a", "long heading"], ["b", "c"]])
    assert capsys.readouterr().out == "a  long heading\nb  c\n"


def test_a_table_keeps_its_numbers_and_the_terminals_width(terminal, capsys):
    terminal(40)
    rows = [(f"figure {i}", 10**6 + i, 2 * 10**6 + i, 3 * 10**6 + i) for i in range(2)]
    print_table(("", "first", "second", "third"), rows, title="the title")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.count("the title") == 1
    assert shown.count("figure 1") == 2
    for row in rows:
        for number in row[1:]:
            assert shown.count(f"{number:,}") == 1


def test_prose_breaks_between_words(terminal):
    terminal(12)
    assert wrapped("one two three, four-five") == "one two\nthree,\nfour-five"
