"""Incremental text: whole characters, the same in pieces as at once, no stop string leaked."""

import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from paged.engine.text import Detokenizer, StopStrings
from paged.models import Tokenizer

# The tokenizer is a fixture that no example changes.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def pieces_of(decoder, ids, context=()):
    detokenizer = Detokenizer(decoder, context)
    return [detokenizer.add(token) for token in ids] + [detokenizer.finish()]


def byte_fallback_tokenizer():
    """As SentencePiece models have it: words with a leading mark, single bytes for the rest."""
    words = ["<unk>", "▁", "▁hello", "▁world", "h", "e", "l", "o"]
    vocab = {piece: index for index, piece in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend), vocab


def test_a_character_comes_with_its_last_byte(byte_tokenizer):
    ids = byte_tokenizer.encode("aé€😀b")
    assert pieces_of(byte_tokenizer, ids) == [*"a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_comes_as_replacement_at_the_end(byte_tokenizer):
    ids = byte_tokenizer.encode("a€")[:-1]
    assert pieces_of(byte_tokenizer, ids) == ["a", "", "", "\ufffd"]


def test_the_space_of_a_later_word_is_kept():
    tokenizer, vocab = byte_fallback_tokenizer()
    ids = [vocab["▁hello"], vocab["▁world"], vocab["▁world"]]
    assert pieces_of(tokenizer, ids) == ["hello", " world", " world", ""]
    assert pieces_of(tokenizer, ids[1:], context=ids[:1]) == [" world", " world", ""]


def test_a_character_that_the_prompt_began_is_given_out_whole(byte_tokenizer):
    ids = byte_tokenizer.encode("a€b")
    assert pieces_of(byte_tokenizer, ids[3:], context=ids[:3]) == ["€", "b", ""]


def test_special_tokens_have_no_text(byte_tokenizer):
    ids = [*byte_tokenizer.encode("a"), 256, *byte_tokenizer.encode("b")]
    assert pieces_of(byte_tokenizer, ids) == ["a", "", "b", ""]


@shared
@given(ids=st.lists(st.integers(0, 256), max_size=40), split=st.integers(0, 40))
def test_pieces_of_any_bytes_add_up_to_the_whole(byte_tokenizer, ids, split):
    whole = byte_tokenizer.decode(ids)
    assert "".join(pieces_of(byte_tokenizer, ids)) == whole
    context = byte_tokenizer.encode("é " + "x" * split)
    assert "".join(pieces_of(byte_tokenizer, ids, context)) == whole


@shared
@given(text=st.text(max_size=30))
def test_pieces_of_any_text_add_up_with_byte_fallback(text):
    tokenizer, _ = byte_fallback_tokenizer()
    ids = tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_stop_string_over_several_pieces_is_never_shown():
    stop = StopStrings(["</s>", "END"])
    assert [stop.add(piece) for piece in ["a<", "/s", "b<", "/s", ">c"]] == [
        ("a", False),
        ("", False),
        ("</sb", False),
        ("", False),
        ("", True),
    ]


def test_the_earliest_stop_string_wins():
    assert StopStrings(["late", "now"]).add("x now or late") == ("x ", True)


def test_what_was_held_back_comes_when_no_stop_string_came():
    stop = StopStrings(["abab"])
    assert stop.add("xaba") == ("x", False)
    assert stop.finish() == "aba"


@given(
    text=st.text("ab", max_size=20),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 4), min_size=20, max_size=20),
)
def test_stop_strings_cut_pieces_where_they_would_cut_the_whole(text, stop, cuts):
    matcher, shown, rest, stopped = StopStrings(stop), "", text, False
    for length in cuts:
        piece, rest = rest[:length], rest[length:]
        safe, stopped = matcher.add(piece)
        shown += safe
        assert not any(word in shown for word in stop)
        if stopped:
            break
    shown += "" if stopped else matcher.finish()
    # A stop string ends the text as soon as it is whole, be it inside of a longer one.
    ends = [text.index(word) + len(word) for word in stop if word in text]
    assert stopped == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert text.startswith(shown)
