"""The words of every setting: its flag, what it does, what it may be. Plain data: `--help` stays quick."""

from __future__ import annotations

from dataclasses import dataclass

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types that llama.cpp's caches can have."""
UNQUANTISED = KV_TYPES[:3]
"""Those that keep every number by itself: they need no flash attention, and change the text by rounding at most."""
MAX_N_DRAFT = 16
AUTO_N_DRAFT = 31
"""The most that `auto` verifies at once; a model drafts less, a lookup can propose so much for nothing."""
MIN_CTX = 64


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Attributes:
        flag: How it is called on the command line; empty for what only the settings file knows.
        help: One sentence: what it does.
        allowed: What a value may be, to complete "Allowed: ...".
        default: What is taken when nothing is said, where that is one value.
    """

    flag: str
    help: str
    allowed: str
    default: str = ""

    @property
    def sentence(self) -> str:
        """Help and default, for `--help`."""
        return f"{self.help} Default: {self.default}." if self.default else self.help


_MODEL = "a path to a .gguf file, a catalogue name, a hub repo[:quant], or demo"

OPTIONS: dict[str, Option] = {
    "target": Option("TARGET", "The model that answers: " + _MODEL + ".", _MODEL, "qwen3.8-27b"),
    "draft": Option(
        "--draft",
        "What drafts: a size word (4b), a .gguf file, a catalogue name, a hub repo[:quant], lookup, mtp, "
        "package.module:Class of your own, or none.",
        "a size word of the target's family, " + _MODEL + ", lookup, mtp, package.module:Class, or none",
    ),
    "lookup": Option(
        "--lookup",
        "A text file to look up drafts in, beside the conversation: code, a document. May be given several times.",
        "a list of text files in UTF-8, 16 MiB together",
    ),
    "n_draft": Option(
        "--n-draft",
        "Tokens drafted per round: auto chooses each round by what it earns, auto:8 at most 8, 8 always 8, 0 none.",
        f"auto, auto:N, or a whole number N from 0 to {MAX_N_DRAFT}, smaller than the batch and than ubatch",
        "auto",
    ),
    "temperature": Option(
        "--temp",
        "Randomness of the answer; 0 always takes the most likely token.",
        "a number from 0 to 5",
        "0.7",
    ),
    "top_p": Option(
        "--top-p",
        "Keep the most likely tokens that reach this probability together; 1 keeps all.",
        "a number greater than 0 and at most 1",
        "0.95",
    ),
    "top_k": Option(
        "--top-k", "Keep this many of the most likely tokens; 0 keeps all.", "a whole number, 0 or more", "40"
    ),
    "min_p": Option(
        "--min-p",
        "Drop tokens that are less likely than this share of the most likely one; 0 drops none.",
        "a number from 0 to 1",
        "0",
    ),
    "repeat_penalty": Option(
        "--repeat-penalty",
        "Make tokens that occurred lately less likely; 1 is off.",
        "a number greater than 0 and at most 5",
        "1",
    ),
    "presence_penalty": Option(
        "--presence-penalty",
        "Lower the score of every token that occurred lately by this much; 0 is off.",
        "a number from -2 to 2",
        "0",
    ),
    "frequency_penalty": Option(
        "--frequency-penalty",
        "Lower the score of a token by this much for each time it occurred lately; 0 is off.",
        "a number from -2 to 2",
        "0",
    ),
    "penalty_last_n": Option(
        "", "How many of the last tokens the penalties look at.", "a whole number, 0 or more", "64"
    ),
    "seed": Option(
        "--seed",
        "Name of the random numbers: the same seed, prompt and settings give the same text.",
        "a whole number from 0 to 18446744073709551615",
    ),
    "ctx": Option(
        "--ctx",
        "Tokens of prompt and answers that fit into the context; 0 = what the model was trained for.",
        f"0, or a whole number from {MIN_CTX} up",
        "8192",
    ),
    "batch": Option(
        "--batch", "Prompt tokens that are evaluated at once.", "a whole number from 8 to 8192", "512"
    ),
    "ubatch": Option(
        "--ubatch",
        "Tokens of a batch that are computed at once: fewer need less memory, more may read prompts faster on a GPU; "
        "0 = the whole batch.",
        "0, or a whole number from 8 to the batch",
        "0",
    ),
    "gpu_layers": Option(
        "--gpu-layers",
        "Layers of the target on the GPU; -1 = all that fit.",
        "-1 or a whole number, 0 or more",
        "-1",
    ),
    "draft_gpu_layers": Option(
        "--draft-gpu-layers",
        "Layers of the draft on its GPU; -1 = all of them.",
        "-1 or a whole number, 0 or more",
        "-1",
    ),
    "draft_device": Option(
        "--draft-device",
        "Where the draft model runs: cpu, a GPU as localspec doctor lists them (gpu1, CUDA1), or auto: where the "
        "target does.",
        "auto, cpu, or a device that localspec doctor lists",
        "auto",
    ),
    "draft_threads": Option(
        "--draft-threads",
        "CPU threads of the draft; 0 = as many as the target's.",
        "a whole number from 0 to 512",
        "0",
    ),
    "draft_kv": Option(
        "--draft-kv",
        "Type of the draft's cache; it never changes the text. Without it: as --kv.",
        ", ".join(KV_TYPES),
    ),
    "overlap": Option(
        "--overlap",
        "Let the draft model draft on while the target verifies: auto where they run on different devices and it was "
        "measured to pay, on wherever it can, off never.",
        "auto, on or off",
        "auto",
    ),
    "kv": Option("--kv", "Type of both caches; q8_0 halves their memory.", ", ".join(KV_TYPES), "f16"),
    "flash_attn": Option(
        "--flash-attn",
        "Flash attention: auto uses it where the device can; a quantised cache needs it.",
        "auto, on or off",
        "auto",
    ),
    "split_mode": Option(
        "--split-mode",
        "How several GPUs share a model: whole layers, rows of each matrix, or none (one GPU takes it all).",
        "layer, row or none",
        "layer",
    ),
    "threads": Option(
        "--threads", "CPU threads; 0 = chosen by the number of cores.", "a whole number from 0 to 512", "0"
    ),
    "system": Option("--system", "The system message.", "text"),
    "max_tokens": Option(
        "--max-tokens",
        "Longest answer in tokens; 0 = until the model stops or the context is full.",
        "a whole number, 0 or more",
        "0",
    ),
    "think": Option(
        "--think/--no-think",
        "Let the model think first, where its template knows how; unset leaves it to the template.",
        "true or false",
    ),
    "show_drafted": Option(
        "", "Begin with accepted draft tokens coloured apart from the target's own.", "true or false", "false"
    ),
    "theme": Option("", "Name of the interface's colour theme; empty = the default one.", "text"),
}
