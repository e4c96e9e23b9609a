"""Token bytes to text: characters over token borders, stop strings, thinking."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.spec.text import TextStream

THINK = ("<think>", "</think>")


def feed(stream, *datas, drafted=False):
    """Push tokens until a stop string ends the answer, then flush; returns all pieces."""
    pieces = []
    for number, data in enumerate(datas):
        new = stream.push(number, data if isinstance(data, bytes) else data.encode(), drafted)
        assert new, "every token owes a piece"
        pieces += new
        if stream.stopped:
            break
    pieces += stream.flush()
    return pieces


def texts(pieces):
    return [piece.text for piece in pieces]


def in_bytes(text):
    return [bytes([byte]) for byte in text.encode()]


# ------------------------------------------------------------------------------ characters


def test_emoji_in_four_byte_tokens_comes_whole_with_the_last_byte():
    assert texts(feed(TextStream(), *in_bytes("😀"))) == ["", "", "", "😀"]


def test_hangul_cut_in_two():
    data = "한".encode()
    assert texts(feed(TextStream(), data[:2], data[2:])) == ["", "한"]


def test_joined_family_emoji_survives_byte_tokens():
    family = "👨‍👩‍👧‍👦"
    stream = TextStream()
    pieces = feed(stream, *in_bytes(f"a{family}b"))
    assert stream.answer == "".join(texts(pieces)) == f"a{family}b"
    assert "�" not in stream.answer


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\xffb", "a�b"),
        (b"\xf0\x9fA", "�A"),
        (b"\xc3(", "�("),
        (b"\x80\x80z", "��z"),
        (b"\xed\xa0\x80x", "���x"),
    ],
)
def test_bytes_that_are_no_utf8_keep_what_follows(data, expected):
    whole, bytewise = TextStream(), TextStream()
    feed(whole, data)
    feed(bytewise, *(bytes([byte]) for byte in data))
    assert whole.answer == bytewise.answer == expected


def test_half_a_character_at_the_end_is_one_replacement_mark():
    stream = TextStream()
    stream.push(7, b"ok\xf0\x9f\x98", True)
    (piece,) = stream.flush()
    assert (piece.token_id, piece.text, piece.drafted) == (7, "�", True)
    assert stream.answer == "ok�"
    assert stream.flush() == ()


def test_each_token_keeps_its_id_and_flag():
    stream = TextStream()
    first = stream.push(11, b"a", False)
    second = stream.push(12, b"", True)
    third = stream.push(13, b"b", True)
    assert [(p.token_id, p.text, p.drafted) for p in first + second + third] == [
        (11, "a", False),
        (12, "", True),
        (13, "b", True),
    ]


def test_an_answer_without_tokens_has_nothing_to_flush():
    assert TextStream(tags=THINK, in_thinking=True).flush() == ()


# ---------------------------------------------------------------------------- stop strings


def test_stop_string_over_token_borders_is_never_shown():
    stream = TextStream(stop=["###END"])
    assert texts(feed(stream, "Hi", "##", "#EN", "D", "never")) == ["Hi", "", "", ""]
    assert stream.stopped
    assert stream.answer == "Hi"


def test_false_start_is_released_with_the_token_that_rules_it_out():
    stream = TextStream(stop=["###END"])
    assert texts(feed(stream, "##", "x", "##")) == ["", "##x", "", "##"]
    assert not stream.stopped
    assert stream.answer == "##x##"


def test_only_the_tail_that_can_still_match_is_held():
    stream = TextStream(stop=["aab"])
    assert texts(stream.push(0, b"aaa", False)) == ["a"]
    assert texts(stream.push(1, b"b", False)) == [""]
    assert stream.stopped
    assert stream.answer == "a"


def test_stop_inside_one_token_drops_the_rest_of_it():
    stream = TextStream(stop=["\nUser:"])
    assert texts(feed(stream, "fine.\nUser: and")) == ["fine."]
    assert stream.stopped


def test_stop_that_ends_with_an_emoji_completes_inside_its_bytes():
    stream = TextStream(stop=["end😀"])
    pieces = feed(stream, "x en", b"d\xf0\x9f", b"\x98\x80 more")
    assert stream.stopped
    assert "".join(texts(pieces)) == stream.answer == "x "


def test_half_a_character_behind_a_stop_string_is_dropped_too():
    stream = TextStream(stop=["STOP"])
    assert texts(feed(stream, b"aSTOP\xf0\x9f")) == ["a"]
    assert stream.answer == "a"
    assert stream.flush() == ()


def test_the_stop_that_starts_first_wins_even_when_it_ends_last():
    assert cut(["bc", "abcd"], "xabcd") == "x"
    assert cut(["bc", "abcd"], "xabcz") == "xa"


def test_end_of_the_answer_settles_a_stop_that_had_to_wait():
    stream = TextStream(stop=["bc", "abcd"])
    for number, letter in enumerate("xabc"):
        stream.push(number, letter.encode(), False)
    assert not stream.stopped
    stream.flush()
    assert stream.stopped
    assert stream.answer == "xa"


def test_of_two_stops_at_one_place_the_shorter_ends_the_answer_at_once():
    stream = TextStream(stop=["##END", "##"])
    stream.push(0, b"a##", False)
    assert stream.stopped
    assert stream.answer == "a"


def test_empty_stop_strings_are_ignored():
    stream = TextStream(stop=["", "!"])
    assert texts(feed(stream, "a", "b")) == ["a", "b"]
    assert not stream.stopped


def test_special_characters_in_stop_strings_are_literal():
    assert cut([".*", "a|b"], "xyz a|b") == "xyz "
    assert cut([".*"], "xyz") == "xyz"


@pytest.mark.parametrize("end", ["stop", "flush"])
def test_a_token_after_the_end_is_an_error(end):
    stream = TextStream(stop=["!"])
    stream.push(0, b"a!" if end == "stop" else b"a", False)
    if end == "flush":
        stream.flush()
    with pytest.raises(RuntimeError, match="ended"):
        stream.push(1, b"b", False)


def cut(stops, text):
    stream = TextStream(stop=stops)
    feed(stream, *text)
    return stream.answer


# ------------------------------------------------------------------------------- thinking


def thought(*datas, prompted=False, stop=()):
    stream = TextStream(tags=THINK, in_thinking=prompted, stop=stop)
    feed(stream, *datas)
    return stream.thinking, stream.answer


def test_thinking_and_answer_are_told_apart():
    stream = TextStream(tags=THINK)
    pieces = feed(stream, "<think>", "\n", "Two", " plus two.", "\n", "</think>", "\n\n", "Four")
    assert (stream.thinking, stream.answer) == ("Two plus two.", "Four")
    assert [(p.text, p.thinking) for p in pieces if p.text] == [
        ("Two", True),
        (" plus two.", True),
        ("Four", False),
    ]


def test_tags_split_over_tokens():
    assert thought("<th", "ink", ">hm</th", "ink", ">ok") == ("hm", "ok")


def test_one_token_can_end_the_thinking_and_begin_the_answer():
    stream = TextStream(tags=THINK)
    stream.push(0, b"<think>", False)
    assert stream.in_thinking
    pieces = stream.push(1, b"so.</think>\nYes", True)
    assert [(p.token_id, p.text, p.drafted, p.thinking) for p in pieces] == [
        (1, "so.", True, True),
        (1, "Yes", True, False),
    ]
    assert not stream.in_thinking


def test_prompt_that_ends_with_the_tag_starts_in_thinking():
    stream = TextStream(tags=THINK, in_thinking=True)
    assert stream.in_thinking
    feed(stream, "Hm", "</think>", "Yes")
    assert (stream.thinking, stream.answer) == ("Hm", "Yes")


def test_a_model_that_repeats_the_prompts_tag():
    assert thought("<think>", "\nHm</think>Yes", prompted=True) == ("Hm", "Yes")


def test_never_closed_is_all_thinking():
    assert thought("Let me see", "\n", prompted=True) == ("Let me see", "")
    assert thought("<think>", "a </thi") == ("a </thi", "")


def test_empty_thinking():
    assert thought("<think>\n\n", "</think>", "\n\nHi") == ("", "Hi")


def test_whitespace_inside_is_kept():
    assert thought("<think>\na\n\n", "b \n</think>\n\n c\n\nd\n") == ("a\n\nb", "c\n\nd\n")


def test_opening_tag_counts_only_at_the_very_start():
    assert thought("\n <think>a</think>b") == ("a", "b")
    text = "```xml\n<think>a</think>\n```"
    assert thought(*text) == ("", text)


def test_closing_tag_counts_only_inside_thinking():
    assert thought("a</think>b") == ("", "a</think>b")
    assert thought("<think>x</think>a</think>b") == ("x", "a</think>b")


def test_whitespace_of_an_answer_without_thinking_is_kept():
    assert thought("\n", " ", "<th", "at>") == ("", "\n <that>")
    assert thought(" ", "\n") == ("", " \n")


def test_a_model_without_tags_writes_them_as_text():
    stream = TextStream()
    feed(stream, "<think>a</think>")
    assert (stream.thinking, stream.answer) == ("", "<think>a</think>")


def test_stop_strings_count_in_the_answer_only():
    assert thought("<think>User: said</think>", "ok", "User:", stop=["User:"]) == ("User: said", "ok")


def test_stop_string_waits_for_the_decision_whether_the_model_thinks():
    assert thought("\n", "\n", "Hi", stop=["\n\n"]) == ("", "")
    assert thought("\n", "\n", "<think>a</think>b", stop=["\n\n"]) == ("a", "b")


def test_other_tags():
    stream = TextStream(tags=("<|channel>thought\n", "<channel|>"))
    feed(stream, "<|channel>", "thought", "\nhm", "<channel|>", "ok")
    assert (stream.thinking, stream.answer) == ("hm", "ok")


CHANNELS = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")

ANALYSIS, COMMENTARY, NEXT = CHANNELS[0], "<|channel|>commentary<|message|>", "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("written", "thinking", "answer"),
    [
        (f"{CHANNELS[0]}hm{CHANNELS[1]}ok", "hm", "ok"),
        ("<|channel|>final<|message|>ok", "", "ok"),
        ("<|channel|>commentary<|message|>ok", "", "ok"),
        ("<|channel|>other<|message|>ok", "", "<|channel|>other<|message|>ok"),
        ("<|channel|>final", "", "<|channel|>final"),
        ("ok <|channel|>final<|message|>", "", "ok <|channel|>final<|message|>"),
        (f"{ANALYSIS}hm{NEXT}{ANALYSIS} so \n{CHANNELS[1]}ok", "hm\n\n so", "ok"),
        (
            f"{ANALYSIS}hm{NEXT}{COMMENTARY}Wait. {NEXT}{ANALYSIS}so{CHANNELS[1]}\nok",
            "hm\n\nso",
            "Wait. \n\nok",
        ),
        (f"{COMMENTARY}Wait.{CHANNELS[1]}ok", "", "Wait.\n\nok"),
        (f"{COMMENTARY}a{NEXT}{COMMENTARY}b{NEXT}{ANALYSIS}hm", "hm", "a\n\nb"),
        (f"{COMMENTARY}a{NEXT}<|channel|>fin", "", f"a{NEXT}<|channel|>fin"),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 100])
def test_channels(written, thinking, answer, cut):
    stream = TextStream(tags=CHANNELS)
    feed(stream, *(written[at : at + cut] for at in range(0, len(written), cut)))
    assert (stream.thinking, stream.answer) == (thinking, answer)


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_stop_strings_between_channels(cut):
    """They count in every block of the answer, never in a header, and the first one wins."""
    written = f"{COMMENTARY}a{NEXT}{ANALYSIS}x END{CHANNELS[1]}b END c{CHANNELS[1]}d"
    stream = TextStream(tags=CHANNELS, stop=["END", "<|start|>", "\n\n"])
    for at in range(0, len(written), cut):
        stream.push(1, written[at : at + cut].encode(), False)
        if stream.stopped:
            break
    assert (stream.stopped, stream.thinking, stream.answer) == (True, "x END", "a\n\nb ")


@pytest.mark.parametrize("tags", [("", "</think>"), ("<think>", " \n")])
def test_empty_tags_are_refused(tags):
    with pytest.raises(ValueError, match="empty"):
        TextStream(tags=tags)


def test_thinking_without_tags_is_refused():
    with pytest.raises(ValueError, match="tags"):
        TextStream(in_thinking=True)


# ------------------------------------------------------------------------------ properties

ALPHABET = ["<think>", "</think>", "<", "th", "\n", " ", "a", "ab", "#", "##", "END", "é", "한", "😀", "👩‍👧"]


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(
        st.one_of(st.sampled_from([p.encode() for p in ALPHABET]), st.binary(max_size=3)), max_size=12
    ),
    cuts=st.sets(st.integers(0, 60)),
    stop=st.lists(
        st.sampled_from(["##END", "#a", "ab\n", "aba", "b", "한é", "", "\n\n", "</think>"]), max_size=3
    ),
    tags=st.sampled_from([None, THINK]),
    prompted=st.booleans(),
)
@example([b"<think>a</think>b##END"], {3, 9, 11, 14, 19}, ["##END"], THINK, False)
@example([b"xabc"], {1, 2, 3}, ["abcd", "bc"], None, False)
def test_token_borders_change_nothing(parts, cuts, stop, tags, prompted):
    data = b"".join(parts)
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    prompted = prompted and tags is not None

    whole = TextStream(stop=stop, tags=tags, in_thinking=prompted)
    feed(whole, data)
    split = TextStream(stop=stop, tags=tags, in_thinking=prompted)
    out = feed(split, *pieces)

    assert (split.answer, split.thinking, split.stopped) == (whole.answer, whole.thinking, whole.stopped)
    assert "".join(texts(out)) == split.thinking + split.answer
    assert "".join(p.text for p in out if p.thinking) == split.thinking
    if tags is None:
        text = data.decode(errors="replace")
        starts = [text.find(s) for s in stop if s and s in text]
        assert split.answer == (text[: min(starts)] if starts else text)
        assert split.stopped is bool(starts)


def test_work_per_token_does_not_grow_with_the_answer(monkeypatch):
    import localspec.spec.text as module

    seen = []
    real = module._open_end
    monkeypatch.setattr(module, "_open_end", lambda text, words: seen.append(len(text)) or real(text, words))
    stream = TextStream(stop=["\nUser:"], tags=THINK, in_thinking=True)
    for number in range(3000):
        stream.push(number, b"w \n"[number % 3 : number % 3 + 1], False)
    stream.push(3000, b"</think>", False)
    for number in range(3000):
        stream.push(number, b"w \n"[number % 3 : number % 3 + 1], False)
    assert len(seen) == 6000
    assert max(seen) <= len("</think>")
