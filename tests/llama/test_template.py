"""Chat templates: real templates' habits in small ones of our own, refusals, thinking, BOS, and answers' own ids."""

from __future__ import annotations

import itertools
import json
import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import TemplateError
from localspec.llama import sandbox
from localspec.llama.formats import FORMATS
from localspec.llama.template import ChatTemplate
from localspec.llama.template_ids import to_ids
from localspec.worker.protocol import Message

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

NO_SYSTEM_ALTERNATING = """
{{- bos_token -}}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{{- '<' + m.role + '>' + m.content | trim + '</>' }}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}
"""

THINKER = """
{%- for m in messages %}
{%- set content = m.content %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|' + m.role + '|>' + content | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}
{%- else %}{{ '<think>\\n' }}{% endif %}{% endif %}
"""

KEEPS_THINKING = """
{%- for m in messages %}{{ '<|' + m.role + '|>' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}
"""


def template(source, **changes):
    return ChatTemplate(source, **{"bos": "<s>", "eos": "</s>"} | changes)


def user(text):
    return Message("user", text)


def system(text):
    return Message("system", text)


def answer(text, ids=(), thinking=""):
    return Message("assistant", text, tuple(ids), thinking)


def from_model(source, tokens=(), architecture="llama"):
    return ChatTemplate.from_model(
        source, bos="<s>", eos="</s>", architecture=architecture, has_token=set(tokens).__contains__
    )


# ------------------------------------------------------------------------------ rendering


def test_renders_a_conversation():
    rendered = template(CHATML).render([system("Be terse."), user("Hi"), answer("Ho"), user("Bye")])
    assert rendered.text == (
        "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.notes == ()
    assert rendered.had_bos is False


def test_generation_prompt_can_be_left_out():
    rendered = template(CHATML).render([user("Hi")], add_generation_prompt=False)
    assert rendered.text == "<|im_start|>user\nHi<|im_end|>\n"


def test_mappings_are_messages_too():
    assert template(CHATML).render([{"role": "user", "content": "Hi"}]) == template(CHATML).render(
        [user("Hi")]
    )


def test_generation_tags_are_accepted_and_mean_nothing():
    source = CHATML.replace("{{- '<|im_start|>' +", "{%- generation %}{{- '<|im_start|>' +").replace(
        "'<|im_end|>\\n' }}", "'<|im_end|>\\n' }}{%- endgeneration %}"
    )
    assert "generation %}" in source
    assert template(source).render([user("Hi")]) == template(CHATML).render([user("Hi")])


def test_what_templates_find_in_transformers():
    source = (
        "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}\n"
        "   {% if true %}\n{{ {'k': '<é>'} | tojson }}|{{ [1] | tojson(indent=1) }}|{% endif %}\n"
        "{{ strftime_now('%Y') }}|{{ tools is none }}|{{ eos_token }}"
    )
    text = template(source).render([user("Hi"), user("unseen")]).text
    assert text == f"Hi{json.dumps({'k': '<é>'}, ensure_ascii=False)}|[\n 1\n]|{datetime.now():%Y}|True|</s>"


def test_counting_the_loops_does_not_change_them():
    source = (
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}"
        "{{ loop.previtem.content if loop.previtem }}>{{ loop.nextitem.content if loop.nextitem }}"
        "{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ m.content }}{% else %}never{% endfor %};{% endfor %}"
        "{% for x in nothing %}never{% else %}none{% endfor %}"
        "{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
        "{% for i in range(3) %}{{ loop.cycle('x', 'y') }}{% endfor %}"
    )
    text = template(source).render([user("p"), answer("-"), user("q")]).text
    assert text == "1/2>qa1p;2/2.p>a1q;none12xyx"


def test_content_as_parts_for_templates_that_want_it():
    source = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }};{% endfor %}{% endfor %}"
    assert template(source).render([user("Hi"), answer("Ho")]).text == "Hi;Ho;"


def test_templates_that_loop_over_tools_unasked():
    source = "{% for t in tools %}{{ t }}{% endfor %}" + CHATML
    assert template(source).render([user("Hi")]).text == template(CHATML).render([user("Hi")]).text


@pytest.mark.parametrize("bos", ["<s>", ""])
def test_bos_is_reported_and_not_rendered(bos):
    rendered = template("{{ bos_token }}" + CHATML, bos=bos).render([user("Hi")])
    assert rendered.text == template(CHATML).render([user("Hi")]).text
    assert rendered.had_bos is bool(bos)


def test_doubled_bos_is_removed_but_not_one_that_the_user_wrote():
    rendered = template("{{ bos_token }}{{ bos_token }}" + CHATML).render([user("<s>Hi")])
    assert rendered.text.startswith("<|im_start|>user\n<s>Hi")


# ------------------------------------------------------------------------------- thinking


def test_thinking_switch():
    chat = template(THINKER)
    assert chat.knows_thinking
    assert chat.thinking_tags == ("<think>", "</think>")
    for think, starts in ((None, True), (True, True), (False, False)):
        text = chat.render([user("Hi")], think=think).text
        assert chat.starts_thinking(text) is starts
        assert text.endswith("<think>\n" if starts else "</think>\n\n")


def test_a_template_that_only_mentions_the_switch_does_not_know_it():
    chat = template("{# enable_thinking <think></think> #}{% set x = 'enable_thinking' %}" + CHATML)
    assert not chat.knows_thinking
    assert chat.thinking_tags is None
    text = chat.render([user("Hi <think>")], think=True).text
    assert not chat.starts_thinking(text)


@pytest.mark.parametrize(
    "head",
    [
        "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}",
        "{% set enable_thinking = enable_thinking | default(true) %}",
        "{% if thinking %}{% endif %}",
    ],
)
def test_other_ways_to_know_the_switch(head):
    assert template(head + CHATML).knows_thinking


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("[THINK]x[/THINK]", ("[THINK]", "[/THINK]")),
        ("<|channel>thought\nx<channel|>", ("<|channel>thought", "<channel|>")),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ),
        ("<seed:think>x</seed:think>", ("<seed:think>", "</seed:think>")),
    ],
)
def test_tags_of_other_families(text, tags):
    assert template(f"{{% if false %}}{text}{{% endif %}}" + CHATML).thinking_tags == tags


def test_earlier_thinking_is_offered_to_the_template_and_never_part_of_the_content():
    messages = [user("Hi"), answer("Ho", thinking="hmm"), user("Bye")]
    assert "hmm" not in template(CHATML).render(messages).text
    assert "<think>hmm</think>Ho<|end|>" in template(KEEPS_THINKING).render(messages).text


# ------------------------------------------------------------------------------- refusals


def test_refused_system_message_is_folded_into_the_first_question():
    rendered = template(NO_SYSTEM_ALTERNATING).render(
        [system("Be terse."), user("Hi"), answer("Ho"), user("Bye")]
    )
    assert rendered.text == "<user>Be terse.\n\nHi</><assistant>Ho</><user>Bye</><assistant>"
    (note,) = rendered.notes
    assert "system message" in note
    assert "first user message" in note


def test_refused_neighbours_are_merged():
    rendered = template(NO_SYSTEM_ALTERNATING).render(
        [user("One"), user("Two"), answer("a"), answer("b"), user("c")]
    )
    assert rendered.text == "<user>One\n\nTwo</><assistant>a\n\nb</><user>c</><assistant>"
    assert len(rendered.notes) == 1
    assert "merged" in rendered.notes[0]


def test_system_message_that_comes_late_is_moved_only_where_it_is_refused():
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('late') }}{% endif %}{% endfor %}"
    )
    messages = [user("Hi"), user("there"), system("Be terse."), system("Please.")]
    assert template(CHATML).render(messages).notes == ()
    rendered = template(strict + CHATML).render(messages)
    assert rendered.text.startswith(
        "<|im_start|>system\nBe terse.\n\nPlease.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )
    assert len(rendered.notes) == 1
    assert "beginning" in rendered.notes[0]


def test_system_message_is_never_lost_in_silence():
    source = CHATML.replace(
        "{%- for message in messages %}", "{%- for message in messages if message.role != 'system' %}"
    )
    rendered = template(source).render([system("Be terse."), user("Hi")])
    assert "<|im_start|>user\nBe terse.\n\nHi<|im_end|>" in rendered.text
    assert len(rendered.notes) == 1


def test_late_system_message_is_never_lost_in_silence():
    source = CHATML.replace(
        "{{- '<|im_start|>' +",
        "{%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}{{- '<|im_start|>' +",
    )
    rendered = template(source).render([user("Hi"), system("Be terse.")])
    assert rendered.text.startswith("<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi")
    assert len(rendered.notes) == 1


def test_the_templates_own_message_when_nothing_helps():
    source = (
        CHATML + "{% if messages | length > 2 %}{{ raise_exception('Only two turns, please') }}{% endif %}"
    )
    with pytest.raises(TemplateError) as caught:
        template(source).render([user("a"), answer("b"), user("c")])
    assert caught.value.why == "Only two turns, please"
    assert "refuses" in caught.value.message
    assert caught.value.hint


def test_an_error_that_shows_late_names_its_line():
    source = CHATML + "\n{%- if messages | length > 1 %}\n{{ nothing.at.all }}{% endif %}"
    with pytest.raises(TemplateError) as caught:
        template(source).render([user("a"), answer("b")])
    line = source[: source.index("nothing")].count("\n") + 1
    assert caught.value.why.startswith(f"line {line}: ")


# ----------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for m in messages %}\n{% if m %}", r"line 2: .*end of template"),
        ("\n\n{% wibble %}", r"line 3: .*wibble"),
        ("{{ wibble(messages) }}", r"line 1: .*wibble.*undefined"),
        ("always the same", "leaves out what the user says"),
        ("{% if a %}" * 2000 + "{% endif %}" * 2000, "nested"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "loader"),
    ],
)
def test_unusable_template_falls_back_and_says_why(source, why):
    with pytest.raises(TemplateError, match=why):
        template(source)
    chat, (note,) = from_model(source, ["<|im_start|>", "<|im_end|>"])
    assert re.search(why, note)
    assert "using ChatML, because the vocabulary has <|im_start|>." in note
    assert chat.render([user("Hi")]).text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_of_200_kb_is_no_problem():
    chat, notes = from_model("{# " + "x" * 100_000 + " #}" + "y" * 100_000 + CHATML)
    assert notes == ()
    assert len(chat.render([user("Hi")]).text) > 100_000


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{% for i in range(9999) %}{{ 'abcdefgh' * 99999 }}{% endfor %}",
        "{{ 'a' | center(10000000000) }}",
        "{{ ['a\nb'] | tojson(indent=10000000000) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10000000000) }}",
        "{{ '{:>{n}}'.format_map({'n': 10000000000}) }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ ('a' * 9999999) | replace('a', 'b' * 9999999) }}",
        "{{ ('a' * 9999999).replace('', 'b' * 9999999) }}",
        "{{ range(99999) | map('string') | join('b' * 9999999) }}",
        "{{ ('b' * 9999999).join(('a' * 9999999) | list) }}",
        "{% for i in range(99999) %}{{ ('b' * 999999) | upper | length }}{% endfor %}",
        "{{ [1] | slice(10000000000) | list }}",
        "{{ lipsum(n=99999) }}",
    ],
)
def test_a_hostile_template_comes_to_an_end(source):
    with pytest.raises(TemplateError):
        template(source + CHATML)


def test_what_only_looks_cheap_comes_to_an_end_too(monkeypatch):
    source = "{% for i in range(99) %}{{ 'b' in 'a' * 99 }}{% endfor %}"
    template(source + CHATML)
    monkeypatch.setattr(sandbox, "_SECONDS", -1.0)
    with pytest.raises(TemplateError, match="seconds"):
        template(source + CHATML)


def test_the_limits_leave_ordinary_filters_alone():
    source = (
        "{% set words = ['b', 'a', 'b'] %}{{ words | unique | join('+') }} {{ words | map('upper') | list }} "
        "{{ {'b': 1, 'a': 2} | dictsort | tojson }} {{ 1760000000 | string }} {{ 'x' | replace('x', 'y') }} "
        "{{ '%s, %05d' | format('n', 7) }} {{ 'a\nb' | indent(2) }} {{ words | select('equalto', 'a') | first }} "
        "{{ '-'.join(words) }} {{ '{:>4}'.format(1) }} {{ budget | default(200000) }} {{ {}.get('n', 131072) }} "
        "{{ '1234567 {}'.format(1) }} {{ '1234567 %s' % 1 }}"
    )
    shown = template(source + CHATML).render([user("Hi")]).text
    assert shown.startswith(
        "b+a ['B', 'A', 'B'] [[\"a\", 2], [\"b\", 1]] 1760000000 y n, 00007 a\n  b a b-a-b    1 200000 131072 "
        "1234567 1 1234567 1"
    )


def test_a_hostile_loop_that_starts_later_is_stopped_too():
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    chat = template(CHATML + "{% if messages | length > 1 %}" + loop + "{% endif %}")
    with pytest.raises(TemplateError, match="no end after"):
        chat.render([user("a"), answer("b")])


def test_a_long_chat_under_a_template_that_looks_back_is_no_hostile_loop():
    source = (
        "{% for m in messages %}{% for n in messages %}{% if false %}x{% endif %}{% endfor %}{% endfor %}"
    )
    messages = [user("q"), answer("a")] * 600
    assert "q" in template(source + CHATML).render(messages).text


# ------------------------------------------------------------------------ built-in formats


def test_without_template_the_vocabulary_tells_the_format():
    for tokens, name, text in [
        (["<|im_start|>", "<|im_end|>"], "ChatML", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            "Llama 3",
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            ["<start_of_turn>", "<end_of_turn>"],
            "Gemma",
            "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        ),
        (["[INST]", "[/INST]"], "Mistral", "[INST] Hi[/INST]"),
        (["<|user|>", "<|assistant|>"], "Zephyr", "<|user|>\nHi</s>\n<|assistant|>\n"),
        (["<|user|>", "<|assistant|>", "<|end|>"], "Phi", "<|user|>\nHi<|end|>\n<|assistant|>\n"),
    ]:
        chat, (note,) = from_model(None, tokens)
        assert chat.name == name
        assert (
            note
            == f"The model file has no chat template; using {name}, because the vocabulary has {tokens[0]}."
        )
        assert chat.render([user("Hi")]).text == text
        assert chat.extra_stop == ()


def test_without_any_chat_token_a_plain_form_with_its_stop_string():
    chat, (note,) = from_model("  \n", architecture="gpt2")
    assert chat.extra_stop == ("\nUser:",)
    assert "gpt2" in note
    text = chat.render([system("Be terse."), user("Hi"), answer(" Ho"), user("Bye")]).text
    assert text == "Be terse.\n\nUser: Hi\nAssistant: Ho\nUser: Bye\nAssistant:"


@pytest.mark.parametrize("form", FORMATS, ids=[" ".join([f.name, *f.tokens]) for f in FORMATS])
def test_every_built_in_format_keeps_every_word(form):
    chat, _ = from_model(None, form.tokens)
    assert chat.name == form.name
    rendered = chat.render([system("Be terse."), user("Hi"), answer("Ho"), user("Bye")])
    at = [rendered.text.index(word) for word in ("Be terse.", "Hi", "Ho", "Bye")]
    assert at == sorted(at)
    assert "<s>" not in rendered.text
    assert bool(rendered.notes) is ("system message" in form.source)


def test_the_models_own_template_comes_without_a_note():
    chat, notes = from_model(CHATML, ["[INST]", "[/INST]"])
    assert notes == ()
    assert chat.name == ""


# -------------------------------------------------------------------- answers' own ids

SPECIAL = re.compile(r"<\|\w+\|>|</?\w*>")
OWN = 1000


def tokenize(text):
    """Special tokens as one id each, all else byte by byte."""
    ids, at = [], 0
    for match in SPECIAL.finditer(text):
        ids += text[at : match.start()].encode()
        ids.append(-1 - sum(match.group().encode()))
        at = match.end()
    return ids + list(text[at:].encode())


class Pieces:
    """Ids that a model could have chosen: any cut of a text, told apart from what the tokenizer makes."""

    def __init__(self):
        self.texts = []

    def ids(self, *texts):
        first = OWN + len(self.texts)
        self.texts += [t if isinstance(t, bytes) else t.encode() for t in texts]
        return tuple(range(first, first + len(texts)))

    def __call__(self, token):
        if token < 0:
            return b""
        return self.texts[token - OWN] if token >= OWN else bytes([token])


def own(ids):
    return tuple(i for i in ids if i >= OWN)


def test_next_turn_begins_with_exactly_the_ids_of_this_one():
    """What the caches hold after an answer is what the next prompt starts with."""
    chat, pieces = template(CHATML), Pieces()
    ids = pieces.ids("He", "llo", " wor", "ld")
    first = chat.render([user("Hi")])
    cached = [*to_ids(first, [user("Hi")], tokenize, pieces), *ids]
    messages = [user("Hi"), answer("Hello world", ids), user("Bye")]
    prompt = to_ids(chat.render(messages), messages, tokenize, pieces)
    assert prompt[: len(cached)] == cached
    assert prompt[len(cached)] == tokenize("<|im_end|>")[0]
    assert prompt == to_ids(chat.render(messages), messages, tokenize, pieces)


def test_answers_are_not_mistaken_for_the_same_words_elsewhere():
    pieces = Pieces()
    one, two = pieces.ids("us", "er"), pieces.ids("as", "sistant")
    messages = [
        user("user assistant"),
        answer("user", one),
        user("assistant user"),
        answer("assistant", two),
        user("!"),
    ]
    ids = to_ids(template(CHATML).render(messages), messages, tokenize, pieces)
    expected = []
    for message, run in zip(messages, [None, one, None, two, None], strict=True):
        expected += tokenize(f"<|im_start|>{message.role}\n")
        expected += run or tokenize(message.content)
        expected += tokenize("<|im_end|>\n")
    assert ids == expected + tokenize("<|im_start|>assistant\n")


def test_thinking_that_the_template_drops_is_left_out():
    pieces = Pieces()
    ids = pieces.ids("<think>", "\n", "Ho? ", "Ho", "</think>", "\n\n", "Ho", " ho")
    messages = [user("Hi"), answer("Ho ho", ids, "Ho? Ho"), user("Bye")]
    prompt = to_ids(template(THINKER).render(messages), messages, tokenize, pieces)
    assert own(prompt) == ids[-2:]


def test_thinking_that_the_template_keeps_is_kept_by_its_ids():
    pieces = Pieces()
    ids = pieces.ids("<think>", "hm", "m", "</think>", "Ho")
    messages = [user("Hi"), answer("Ho", ids, "hmm"), user("Bye")]
    prompt = to_ids(template(KEEPS_THINKING).render(messages), messages, tokenize, pieces)
    assert own(prompt) == ids


def test_a_stop_string_and_an_end_token_are_left_out():
    pieces = Pieces()
    ids = pieces.ids("Ho", ".", "\nUser:", b"")
    messages = [user("Hi"), answer("Ho.", ids), user("Bye")]
    prompt = to_ids(template(CHATML).render(messages), messages, tokenize, pieces)
    assert own(prompt) == ids[:2]


def test_where_the_template_trims_the_ids_are_used_as_far_as_they_go():
    pieces = Pieces()
    ids = pieces.ids("He", "llo", "!\n")
    messages = [user("Hi"), answer("Hello!\n", ids), user("Bye")]
    rendered = template(NO_SYSTEM_ALTERNATING).render(messages)
    prompt = to_ids(rendered, messages, tokenize, pieces)
    assert own(prompt) == ids[:2]
    assert spell(prompt, pieces) == SPECIAL.sub("", rendered.text)


def test_a_leading_space_that_the_format_writes_itself():
    chat, _ = from_model(None)
    pieces = Pieces()
    ids = pieces.ids(" Ho", "!")
    messages = [user("Hi"), answer(" Ho!", ids), user("Bye")]
    prompt = to_ids(chat.render(messages), messages, tokenize, pieces)
    assert prompt == [*b"User: Hi\nAssistant:", *ids, *b"\nUser: Bye\nAssistant:"]


def test_ids_that_do_not_spell_the_answer_are_not_used():
    pieces = Pieces()
    messages = [user("Hi"), answer("edited", pieces.ids("or", "iginal")), user("Bye")]
    rendered = template(CHATML).render(messages)
    assert to_ids(rendered, messages, tokenize, pieces) == tokenize(rendered.text)


def test_half_a_character_never_begins_or_ends_a_run():
    pieces = Pieces()
    ids = pieces.ids("a", b"\xf0\x9f", b"\x98\x80\n")
    messages = [user("Hi"), answer("a😀\n", ids), user("Bye")]
    rendered = template(NO_SYSTEM_ALTERNATING).render(messages)
    prompt = to_ids(rendered, messages, tokenize, pieces)
    assert own(prompt) == ids[:1]
    assert spell(prompt, pieces) == SPECIAL.sub("", rendered.text)


def test_invalid_bytes_in_an_answer_keep_their_ids():
    pieces = Pieces()
    ids = pieces.ids("a", b"\xff", "b")
    messages = [user("Hi"), answer("a�b", ids), user("Bye")]
    assert own(to_ids(template(CHATML).render(messages), messages, tokenize, pieces)) == ids


@pytest.mark.parametrize("cut", ["[:-1]", "[:4]", "[::-1]"])
def test_a_template_that_cuts_answers_gets_them_tokenised(cut):
    source = CHATML.replace(
        "message.content +", f"(message.content{cut} if message.role == 'assistant' else message.content) +"
    )
    pieces = Pieces()
    messages = [user("Hi"), answer("Ho ho", pieces.ids("Ho", " ho")), user("Bye")]
    rendered = template(source).render(messages)
    assert "Ho ho" not in rendered.text
    assert to_ids(rendered, messages, tokenize, pieces) == tokenize(rendered.text)


def test_a_template_that_rewrites_answers_gets_them_tokenised():
    source = CHATML.replace("message.content +", "message.content.replace('Ho', 'H0') +")
    pieces = Pieces()
    messages = [user("Hi"), answer("Ho", pieces.ids("H", "o")), user("Bye")]
    rendered = template(source).render(messages)
    assert "H0" in rendered.text
    assert to_ids(rendered, messages, tokenize, pieces) == tokenize(rendered.text)


def test_answers_in_repaired_conversations_are_found():
    pieces = Pieces()
    one, two = pieces.ids("o", "ne"), pieces.ids("t", "wo")
    messages = [system("S"), user("Hi"), answer("one", one), answer("two", two), user("Bye")]
    rendered = template(NO_SYSTEM_ALTERNATING).render(messages)
    prompt = to_ids(rendered, messages, tokenize, pieces)
    assert own(prompt) == one + two
    assert spell(prompt, pieces) == "S\n\nHione\n\ntwoBye"


def test_a_tokenizer_that_puts_a_space_in_front_of_every_text():
    """SentencePiece: right at the start of the conversation, wrong behind an answer."""
    chat, _ = from_model(None)
    pieces = Pieces()

    def spaced(text):
        return [32, *tokenize(text)]

    ids = pieces.ids(" Ho", "!")
    messages = [user("Hi"), answer("Ho!", ids), user("Bye")]
    prompt = to_ids(chat.render(messages), messages, spaced, pieces)
    assert prompt == [*b" User: Hi\nAssistant:", *ids, *b"\nUser: Bye\nAssistant:"]


def test_a_tokenizer_that_joins_the_space_to_the_text_gets_the_whole_text():
    pieces = Pieces()
    (joined,) = pieces.ids(" \n")

    def spaced(text):
        return [joined, *tokenize(text[1:])] if text.startswith("\n") else tokenize(text)

    chat, _ = from_model(None)
    messages = [user("Hi"), answer("Ho", pieces.ids(" H", "o")), user("Bye")]
    rendered = chat.render(messages)
    assert to_ids(rendered, messages, spaced, pieces) == tokenize(rendered.text)


def spell(ids, pieces):
    return b"".join(map(pieces, ids)).decode()


words = st.lists(st.sampled_from(["a", "user", " ", "\n", "é", "😀", "assistant"]), max_size=6).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(st.tuples(words, words, st.lists(st.integers(0, 20), max_size=4)), min_size=1, max_size=4),
    source=st.sampled_from([CHATML, NO_SYSTEM_ALTERNATING, THINKER, KEEPS_THINKING]),
)
def test_ids_always_spell_the_rendered_text(turns, source):
    pieces, messages = Pieces(), []
    for question, said, cuts in turns:
        data = said.encode()
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        ids = pieces.ids(*(data[a:b] for a, b in itertools.pairwise(edges)))
        messages += [user(question + "?"), answer(said, ids)]
    messages.append(user("Bye"))
    rendered = template(source).render(messages)
    ids = to_ids(rendered, messages, tokenize, pieces)
    assert spell(ids, pieces) == SPECIAL.sub("", rendered.text)
    if source in (CHATML, KEEPS_THINKING):
        assert own(ids) == tuple(i for m in messages if m.content.strip() for i in m.token_ids)


# ----------------------------------------------------------------- where questions end


def ends(source, messages):
    rendered = template(source).render(messages, find_questions=True)
    return [rendered.text[:end] for end in rendered.questions]


def test_questions_are_found_among_the_same_words():
    messages = [system("user"), user("user"), answer("user"), user(" assistant\n")]
    found = ends(CHATML, messages)
    assert found == [
        "<|im_start|>system\nuser<|im_end|>\n<|im_start|>user\nuser",
        found[0] + "<|im_end|>\n<|im_start|>assistant\nuser<|im_end|>\n<|im_start|>user\n assistant\n",
    ]
    assert [len(text) for text in ends(THINKER, messages)] == [
        len("<|system|>user<|end|><|user|>user"),
        len("<|system|>user<|end|><|user|>user<|end|><|assistant|>user<|end|><|user|>assistant"),
    ]


def test_the_end_of_a_question_does_not_depend_on_what_comes_behind():
    chat, pieces = template(THINKER), Pieces()
    ids = pieces.ids("<think>", "\n", "Ho? ", "</think>", "\n\n", "Ho", " ho")
    first = chat.render([user("Hi")], find_questions=True)
    second = chat.render([user("Hi"), answer("Ho ho", ids, "Ho?"), user("Bye")], find_questions=True)
    assert second.questions[0] == first.questions[0] == len("<|user|>Hi")
    assert not chat.render([user("Hi")]).questions


def test_questions_in_repaired_conversations_are_found():
    messages = [system("Be terse."), user("Hi"), user("there"), answer("Ho"), user("Bye")]
    assert ends(NO_SYSTEM_ALTERNATING, messages) == [
        "<user>Be terse.\n\nHi",
        "<user>Be terse.\n\nHi\n\nthere",
        "<user>Be terse.\n\nHi\n\nthere</><assistant>Ho</><user>Bye",
    ]


@pytest.mark.parametrize(
    "body", ["{{ m.content | upper }}", "{{ m.content[:3] }}", "{{ m.content | length }}"]
)
def test_a_template_that_rewrites_questions_has_none(body):
    last = "{{ m.content if loop.last }}"  # a template must show the question
    source = "{% for m in messages %}<|{{ m.role }}|>" + last + body + "{% endfor %}"
    assert ends(source, [user("hello"), answer("x"), user("there")]) == []
