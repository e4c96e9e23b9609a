"""Tables about GGUF files: tensor types, file types, architectures.

Facts of the format and of llama.cpp as llama-cpp-python 0.3.36 carries it (`ggml.c`, `llama.h`,
`llama-arch.cpp`, `src/models/*.cpp`).
"""

from __future__ import annotations

from typing import NamedTuple


class BlockType(NamedTuple):
    """How a tensor type stores its numbers."""

    name: str
    values: int
    """Numbers per block."""
    n_bytes: int
    """Bytes per block."""


TENSOR_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    9: BlockType("Q8_1", 32, 36),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    15: BlockType("Q8_K", 256, 292),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    24: BlockType("I8", 1, 1),
    25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4),
    27: BlockType("I64", 1, 8),
    28: BlockType("F64", 1, 8),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
    42: BlockType("Q2_0", 64, 18),
}

REMOVED_TENSOR_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
GUESSED_FILE_TYPE = 1024
"""A flag in `general.file_type`: the writer was not sure."""

# ------------------------------------------------------------------ architectures by memory

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""No attention at all: the past is one state per layer."""

HYBRID = frozenset(
    {
        *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
        *(
            "qwen3next",
            "kimi-linear",
            "bailingmoe3",
            "kimi-k3",
            "glm5-next",
            "qwen35",
            "qwen35moe",
            "qwen4exp",
        ),
        *("deepseek4", "minimax-01"),
    }
)
"""Some layers have attention, some a recurrent state."""

PARALLEL = frozenset({"falcon-h1"})
"""Hybrid in every layer: attention and a state side by side."""

NEXT_TOKEN_ARCHITECTURES = ("qwen35", "qwen35moe", "glm4moe")
"""Where a next-token block has one layer and a cache of its own, and hands out the hidden states of all tokens of a
batch. Others chain several blocks (step35), share the target's cache (gemma4-assistant) or hand out the states of the
output rows only (mimo2, deepseek4): llama.cpp aborts the process when it is asked for more."""

CAN_ROLL_BACK = frozenset(
    {
        *("kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h"),
        *("nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3"),
    }
)
"""Recurrent or hybrid, and llama.cpp can keep snapshots of the state (`n_rs_seq`) to go back to."""


class Sliding(NamedTuple):
    """The sliding-window habit of an architecture, for files that do not spell it out layer by layer."""

    period: int
    """Every `period`-th layer sees everything."""
    full_first: bool = False
    """The full layer is the first of its period, not the last."""
    window: int = 0
    """Tokens seen when the file names no window; 0 = then there is none."""


SLIDING: dict[str, Sliding] = {
    "gemma2": Sliding(2, window=4096),
    "gemma3": Sliding(6),
    "gemma3n": Sliding(5),
    "gpt-oss": Sliding(2),
    "cohere2": Sliding(4),
    "cohere2moe": Sliding(4, full_first=True),
    "llama4": Sliding(4, window=8192),
    "olmo2": Sliding(4),
    "exaone4": Sliding(4),
    "exaone-moe": Sliding(4),
    "plamo3": Sliding(8),
    "afmoe": Sliding(4),
    "mellum": Sliding(4),
    "muse-glimmer": Sliding(4),
    "laguna": Sliding(4, full_first=True),
    "smallthinker": Sliding(4, full_first=True),
}

IGNORES_SLIDING_WINDOW = frozenset({"phi3", "phimoe"})
"""Files that name a window which llama.cpp does not use."""

FULL_ATTENTION_INTERVAL: dict[str, int] = {
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "qwen4exp": 4,
    "minimax-01": 8,
}
"""Every so-manieth layer has attention, the others are recurrent (when the file does not say otherwise)."""

# -------------------------------------------------------------------- architectures by kind

EMBEDDING = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "gemma-embedding", "llama-embed", "t5encoder"),
    }
)
ENCODER_DECODER = frozenset({"t5"})
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
DRAFT_HEADS = frozenset({"eagle3", "eagle", "dflash", "dspark", "gemma4-assistant", "medusa"})
"""Not models by themselves: they read the hidden states of the target that they were trained for."""
AUDIO = frozenset({"wavtokenizer-dec", "pockettts", "qwen3tts", "whisper", "snac", "dac", "orpheus-snac"})
IMAGE = frozenset(
    {
        *("sd1", "sd3", "sdxl", "flux", "aura", "ltxv", "hyvid", "wan", "hidream", "cosmos", "lumina2"),
        *("qwen_image", "qwen-image", "z_image", "pig"),
    }
)
