"""The vocabularies of ghosts: the file's own, a made-up one that llama-server serves with, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, islice, product

from planner.errors import ModelError
from planner.model.gguf import LongArray
from planner.model.ghost.pairs import bool_pair, floats_pair, integers_pair, number_pair, text_pair, texts_pair
from planner.model.model import Model

_PREFIX = "tokenizer."
_MODEL = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"
_OF_TENSORS = "tokenizer.ggml.token_type_count"
"""The one key of the tokenizer that decides a tensor's shape: BERT's types of text."""

_WITHOUT_WORDS = ("none", "no_vocab", "test")
"""Tokenizers that are a number of tokens and no words. `test` is that of llama.cpp's own test models."""

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""llama.cpp's `llama_token_type`."""

_SPACE = "\u2581"
"""SentencePiece's mark for a space."""

_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
"""The alphabet from English's most to its least frequent letter, so that likely pieces get low ids."""

_PRINTABLE = [_SPACE, *map(chr, range(ord("!"), ord("~") + 1))]
_CONTROLS = ["<unk>", "<s>", "</s>"]
_LARGEST = 1 << 21
_SMALLEST = len(_PRINTABLE) + len(_CONTROLS) + 1

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def serves(model: Model) -> bool:
    """Whether the file has words of its own that a text can be turned into."""
    return model.metadata.get(_MODEL, "none") not in _WITHOUT_WORDS and _listed(model) > 0


def is_of_vocabulary(key: str) -> bool:
    """Whether a key says how text becomes tokens, and nothing of the tensors."""
    return key.startswith(_PREFIX) and key != _OF_TENSORS


def size_of(model: Model) -> int:
    """Tokens of a model, as llama.cpp counts them: the words, else the number given, else the embedding's rows.

    Raises ModelError for a number that no header has room for: it would be written word by word.
    """
    if serves(model):
        return _listed(model)
    given = model.metadata.get(f"{model.architecture}.vocab_size")
    embedding = model.tensor("token_embd.weight")
    rows = () if embedding is None else embedding.shape[1:2]
    size = given if isinstance(given, int) else sum(rows)
    if not 0 <= size <= _LARGEST:
        raise ModelError(f"{model.path} claims to have {size:,} tokens, and ghosts have {_LARGEST:,} at most.")
    return size


def _listed(model: Model) -> int:
    tokens = model.metadata.get(_TOKENS, ())
    return tokens.length if isinstance(tokens, LongArray) else len(tokens) if isinstance(tokens, tuple) else 0


def no_vocabulary(architecture: str, size: int) -> Mapping[str, bytes]:
    """The pairs of a model that has so many tokens and knows no word: llama.cpp reads no list."""
    size_key = f"{architecture}.vocab_size"
    return {_MODEL: text_pair(_MODEL, "none"), size_key: number_pair(size_key, size)}


def made_up_vocabulary(architecture: str, size: int) -> Mapping[str, bytes]:
    """The pairs of a SentencePiece vocabulary of exactly `size` tokens.

    It turns any text into tokens and back; one of fewer than 354 tokens lacks bytes, and with them what is not
    ASCII. With weights of zero every token is as likely as any other, and llama.cpp then samples from the lowest
    ids. So bytes and control tokens come last: a server holds back text that ends within a UTF-8 character,
    and ends an answer at `</s>`. Raises ModelError for fewer tokens than there are letters.
    """
    if size < _SMALLEST:
        raise ModelError(
            f"A model of {size} tokens cannot be given a vocabulary.", f"It takes at least {_SMALLEST} tokens."
        )
    room = size - len(_CONTROLS) - len(_PRINTABLE)
    codes = range(256) if room >= 256 else (ord("\n"),)
    byte_tokens = [f"<0x{code:02X}>" for code in codes]
    pieces = list(islice(_pieces(), size - len(_CONTROLS) - len(byte_tokens)))
    unk, bos, eos = range(size - len(_CONTROLS), size)
    scores = [-float(rank) for rank in range(len(pieces))] + [0.0] * (size - len(pieces))
    types = [_NORMAL] * len(pieces) + [_BYTE] * len(byte_tokens) + [_UNKNOWN, _CONTROL, _CONTROL]
    size_key = f"{architecture}.vocab_size"
    ggml = "tokenizer.ggml."
    return {
        size_key: number_pair(size_key, size),
        _MODEL: text_pair(_MODEL, "llama"),
        f"{ggml}pre": text_pair(f"{ggml}pre", "default"),
        _TOKENS: texts_pair(_TOKENS, [*pieces, *byte_tokens, *_CONTROLS]),
        f"{ggml}scores": floats_pair(f"{ggml}scores", scores),
        f"{ggml}token_type": integers_pair(f"{ggml}token_type", types),
        **{
            f"{ggml}{name}_token_id": number_pair(f"{ggml}{name}_token_id", token)
            for name, token in (("unknown", unk), ("bos", bos), ("eos", eos))
        },
        **{
            f"{ggml}{name}": bool_pair(f"{ggml}{name}", value)
            for name, value in (("add_bos_token", True), ("add_eos_token", False), ("add_space_prefix", False))
        },
        "tokenizer.chat_template": text_pair("tokenizer.chat_template", _CHAT_TEMPLATE),
    }


def _pieces() -> Iterator[str]:
    """Yield plain pieces of words without end: characters, then groups of letters, also after a space.

    SentencePiece reaches a piece only by merging two others, so the parts of a piece come before it.
    """
    yield from _PRINTABLE
    yield from (_SPACE + letter for letter in _LETTERS)
    for length in count(2):
        for letters in product(_LETTERS, repeat=length):
            group = "".join(letters)
            yield group
            yield _SPACE + group
