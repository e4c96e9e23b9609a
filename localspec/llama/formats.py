"""Chat formats for model files without a usable template of their own, told by the tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A chat format.

    Attributes:
        name: What to call it.
        tokens: Tokens that a vocabulary must have for this format to be the right one.
        source: Jinja.
        extra_stop: Stop strings that end an answer where the format has no token for it.
    """

    name: str
    tokens: tuple[str, ...]
    source: str
    extra_stop: tuple[str, ...] = ()


def _turns(start: str, roles: tuple[str, str, str], ends: tuple[str, str, str], after: str) -> str:
    """A format whose turns are an opening text, the message and a closing text.

    Args:
        start: Jinja in front of everything.
        roles: Opening texts of system, user and assistant; an empty one refuses such messages.
        ends: Closing texts of the three, as Jinja expressions.
        after: What follows the opening text of the assistant in the generation prompt.
    """
    branches = [
        f"{{% {'if' if index == 0 else 'elif'} message.role == '{role}' %}}"
        + (
            f"{{{{ {opening!r} + message.content + {ending} }}}}"
            if opening
            else "{{ raise_exception('This format has no system message') }}"
        )
        for index, (role, opening, ending) in enumerate(
            zip(("system", "user", "assistant"), roles, ends, strict=True)
        )
    ]
    turns = "{% for message in messages %}" + "".join(branches) + "{% endif %}{% endfor %}"
    return f"{start}{turns}{{% if add_generation_prompt %}}{{{{ {roles[2] + after!r} }}}}{{% endif %}}"


_BOS = "{{ bos_token }}"

PLAIN = Format(
    "plain User:/Assistant: lines",
    (),
    "{% for message in messages %}{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}"
    "{% elif message.role == 'user' %}{{ 'User: ' + message.content + '\\n' }}"
    "{% else %}{{ 'Assistant: ' + message.content | trim + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    ("\nUser:",),
)

FORMATS = (
    Format(
        "Gemma 4",
        ("<|turn>", "<turn|>"),
        _turns(
            _BOS,
            ("<|turn>system\n", "<|turn>user\n", "<|turn>model\n"),
            (r"'<turn|>\n'",) * 3,
            "<|channel>thought\n<channel|>",
        ),
    ),
    Format(
        "Gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        _turns(
            _BOS,
            ("", "<start_of_turn>user\n", "<start_of_turn>model\n"),
            (r"'<end_of_turn>\n'",) * 3,
            "",
        ),
    ),
    Format(
        "Llama 3",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        _turns(
            _BOS,
            (
                "<|start_header_id|>system<|end_header_id|>\n\n",
                "<|start_header_id|>user<|end_header_id|>\n\n",
                "<|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            ("'<|eot_id|>'",) * 3,
            "",
        ),
    ),
    Format(
        "Harmony",
        ("<|start|>", "<|channel|>", "<|message|>"),
        # The assistant's turn is cut behind its name: the model chooses the channel itself.
        "{% for message in messages %}{{ '<|start|>' + message.role }}"
        "{% if message.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
        "{{ '<|message|>' + message.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    ),
    Format(
        "Mistral",
        ("[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
        "{{ bos_token }}{% for message in messages %}"
        "{% if message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}"
        "{% elif message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
        "{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}",
    ),
    Format(
        "Mistral",
        ("[INST]", "[/INST]"),
        "{{ bos_token }}{% for message in messages %}"
        "{% if message.role == 'system' %}{{ raise_exception('This format has no system message') }}"
        "{% elif message.role == 'user' %}{{ '[INST] ' + message.content + '[/INST]' }}"
        "{% else %}{{ ' ' + message.content | trim + eos_token }}{% endif %}{% endfor %}",
    ),
    Format(
        "ChatML",
        ("<|im_start|>", "<|im_end|>"),
        _turns(
            "",
            ("<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"),
            (r"'<|im_end|>\n'",) * 3,
            "",
        ),
    ),
    Format(
        "GLM",
        ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>"),
        _turns("[gMASK]<sop>", ("<|system|>\n", "<|user|>\n", "<|assistant|>\n"), ("''",) * 3, ""),
    ),
    Format(
        "Phi",
        ("<|user|>", "<|assistant|>", "<|end|>"),
        _turns("", ("<|system|>\n", "<|user|>\n", "<|assistant|>\n"), (r"'<|end|>\n'",) * 3, ""),
    ),
    Format(
        "Zephyr",
        ("<|user|>", "<|assistant|>"),
        _turns("", ("<|system|>\n", "<|user|>\n", "<|assistant|>\n"), (r"eos_token + '\n'",) * 3, ""),
    ),
    Format(
        "Granite",
        ("<|start_of_role|>", "<|end_of_role|>"),
        _turns(
            "",
            (
                "<|start_of_role|>system<|end_of_role|>",
                "<|start_of_role|>user<|end_of_role|>",
                "<|start_of_role|>assistant<|end_of_role|>",
            ),
            (r"eos_token + '\n'",) * 3,
            "",
        ),
    ),
    Format(
        "DeepSeek",
        ("<｜User｜>", "<｜Assistant｜>"),
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}"
        "{% elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}"
        "{% else %}{{ '<｜Assistant｜>' + message.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    ),
)


def choose(has_token: Callable[[str], bool]) -> Format:
    """The format that a vocabulary was made for.

    Args:
        has_token: Whether a text is one token of the vocabulary.

    Returns:
        The first format of which all tokens are there; `PLAIN` when there is none.
    """
    return next((form for form in FORMATS if all(map(has_token, form.tokens))), PLAIN)
