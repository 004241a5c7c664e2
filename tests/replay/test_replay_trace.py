"""Both published forms are read, and what is wrong is named with file, line and field."""

import numpy as np
import pytest
from replay_traces import mooncake_line, trace, write_azure, write_mooncake

from paged.replay import read_trace

GOOD = mooncake_line(0, 600, 3, [7, 9])
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_a_mooncake_trace(tmp_path):
    read = read_trace(write_mooncake(tmp_path / "trace.jsonl"))
    assert len(read) == 3
    assert read.arrivals.tolist() == [0, 40_000_000, 40_000_000]
    assert read.prompts.tolist() == [600, 1100, 10]
    assert read.outputs.tolist() == [3, 5, 1]
    # The last token that is generated is never fed back: it has no K/V.
    assert read.finals.tolist() == [602, 1104, 10]
    assert [ids.tolist() for ids in read.hash_ids] == [[0, 1], [0, 2, 3], [4]]


def test_equal_ids_are_equal_tokens_and_no_other_are(tmp_path):
    read = read_trace(write_mooncake(tmp_path / "trace.jsonl"))
    first, second, third = (read.token_ids(request) for request in range(3))
    assert [tokens.size for tokens in (first, second, third)] == [600, 1100, 10]
    assert np.array_equal(first[:512], second[:512])
    everything = np.concatenate([first, second[512:], third])
    assert np.unique(everything).size == everything.size


def test_an_azure_trace(tmp_path):
    read = read_trace(write_azure(tmp_path / "trace.csv"))
    assert read.arrivals.tolist() == [0, 100, 13_319_410_000]
    assert read.prompts.tolist() == [374, 396, 9]
    assert read.outputs.tolist() == [44, 109, 1]
    assert read.hash_ids is None
    with pytest.raises(ValueError, match=r"trace: got trace.csv, which has no hash_ids"):
        read.token_ids(0)


@pytest.mark.parametrize("write", [write_mooncake, write_azure])
def test_a_mark_of_the_byte_order_is_passed_over(tmp_path, write):
    path = write(tmp_path / "trace")
    plain = read_trace(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_trace(path).prompts.tolist() == plain.prompts.tolist()


@pytest.mark.parametrize(
    ("start", "line"), [("", 1), (f"{GOOD}\n\n", 3), (f"{HEADER}\n2023-11-16 18:15:45,1,1\n", 3)]
)
def test_bytes_that_are_no_utf_8_are_refused_where_they_are(tmp_path, start, line):
    path = tmp_path / "trace"
    path.write_bytes(start.encode() + "é".encode() + b"\xff\xfe1,1\n")
    with pytest.raises(ValueError, match=f"trace, line {line}: got byte 0xff, expected UTF-8"):
        read_trace(path)


def test_a_limit_takes_the_first_requests_and_reads_no_further(tmp_path):
    path = write_azure(tmp_path / "trace.csv")
    path.write_bytes(path.read_bytes() + b"\r\nno more of it")
    assert read_trace(path, 2).prompts.tolist() == [374, 396]
    with pytest.raises(ValueError, match="limit: got 0, expected at least 1"):
        read_trace(path, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: got no JSON"),
        ("[]", "line 2: got list, expected an object"),
        ("[" * 200_000, "line 2: got JSON that is too deeply nested, expected an object of num"),
        ('{"timestamp": 0}', "line 2: input_length: got none, expected one; there are timestamp"),
        ("{}", "line 2: input_length: got none, expected one; there are no others"),
        (mooncake_line("x", 1, 1, [1]), "line 2: timestamp: got 'x', expected milliseconds"),
        (mooncake_line(float("nan"), 1, 1, [1]), "line 2: timestamp: got nan, expected millis"),
        (
            mooncake_line(10**400, 1, 1, [1]),
            "line 2: timestamp: got 1000+, expected milli",
        ),
        (mooncake_line(0, 0, 1, []), "line 2: input_length: got 0, expected an integer of at le"),
        (mooncake_line(0, True, 1, [1]), "line 2: input_length: got True, expected an integer"),
        (mooncake_line(0, 1, 0, [1]), "line 2: output_length: got 0, expected an integer of at"),
        (mooncake_line(0, 1, 2.5, [1]), "line 2: output_length: got 2.5, expected an integer"),
        (mooncake_line(0, 1, 1, [-1]), r"line 2: hash_ids: got \[-1\], expected a list of integ"),
        (mooncake_line(0, 513, 1, [1]), "line 2: hash_ids: got 1, expected 2, one for each 512"),
    ],
)
def test_what_is_wrong_in_a_mooncake_trace(tmp_path, line, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError, match=rf"trace\.jsonl, {message}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:15:46,1", "line 3: got 2 fields, expected 3"),
        ("yesterday,1,1", "line 3: TIMESTAMP: got 'yesterday', expected a date as 2023"),
        ("2023-11-16 18:15:46.x,1,1", "line 3: TIMESTAMP: got '2023-11-16 18:15:46.x', expected"),
        ("2023-11-16 18:15:46,-1,1", "line 3: ContextTokens: got '-1', expected an integer of a"),
        (f"2023-11-16 18:15:46,{'9' * 5000},1", "line 3: ContextTokens: got '9+', expected an in"),
        (f"2023-11-16 18:15:46,{'9' * 200_000},1", "line 3: got no CSV: field larger than"),
        ("2023-11-16 18:15:46,1,0", "line 3: GeneratedTokens: got '0', expected an integer of a"),
        ("2023-11-16 18:15:44,1,1", "line 3: TIMESTAMP: got one before that of line 2, expected"),
    ],
)
def test_what_is_wrong_in_an_azure_trace(tmp_path, line, message):
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}\n2023-11-16 18:15:45,1,1\n{line}\n")
    with pytest.raises(ValueError, match=rf"trace\.csv, {message}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: got '', expected an object of Mooncake's form or the header"),
        ("TIMESTAMP,Tokens\n", "line 1: got 'TIMESTAMP,Tokens', expected"),
        (f"{HEADER}\n", "got no request, expected at least one"),
    ],
)
def test_what_is_no_trace(tmp_path, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_requests_out_of_order_are_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{mooncake_line(5, 1, 1, [1])}\n\n{mooncake_line(4, 1, 1, [1])}\n")
    with pytest.raises(ValueError, match="line 3: timestamp: got one before that of line 1"):
        read_trace(path)


def test_a_made_trace_is_like_one_that_was_read():
    assert trace([(2, 3)]).finals.tolist() == [4]
