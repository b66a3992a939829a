"""Another library's `config.json` as our sizes, and back.

A key is allow-listed or it is an error: what is not known could change what a model computes. There are three kinds:
a size of ours under another name, a choice that the family has made already (its value must be the one we have), and
what is about other things, such as bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from qkv.errors import QkvError

REQUIRED = object()


@dataclass(frozen=True)
class Size:
    """Theirs and ours; `absent` is what a missing key means, where it may be missing."""

    theirs: str
    ours: str
    absent: Any = REQUIRED
    to_ours: Callable[[Any], Any] = lambda value: value
    to_theirs: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Together:
    """Keys of theirs that say several sizes of ours together, read and written as one."""

    theirs: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]  # the whole configuration -> our sizes by name
    write: Callable[[Any], dict[str, Any]]  # our sizes -> their keys


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def activation_of(theirs: Any) -> str:
    if not isinstance(theirs, str) or theirs not in ACTIVATIONS:
        raise QkvError(f"The config.json asks for the activation {theirs!r}; known are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[theirs]


def their_activation(ours: str) -> str:
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def activation(theirs: str, ours: str = "activation", absent: Any = REQUIRED) -> Size:
    return Size(theirs, ours, absent, activation_of, their_activation)


# What no family's computation depends on.
ABOUT_OTHER_THINGS = frozenset({
    # bookkeeping
    "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "tokenizer_class", "auto_map",
    "_commit_hash", "name_or_path", "output_past", "torchscript", "use_bfloat16", "finetuning_task",
    "task_specific_params", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
    "experts_implementation",
    # special tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "eos_token_ids", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "prefix",
    "suppress_tokens", "begin_suppress_tokens",
    # how outputs are searched for, and what is returned
    "use_cache", "num_beams", "num_beam_groups", "num_return_sequences", "max_length", "min_length", "length_penalty",
    "early_stopping", "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty", "output_attentions",
    "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate", "remove_invalid_values",
    "exponential_decay_length_penalty", "keys_to_ignore_at_inference",
    # initial values, memory while training, names of answers
    "initializer_range", "initializer_factor", "init_std", "gradient_checkpointing", "id2label", "label2id",
    "num_labels", "_num_labels", "problem_type",
})  # fmt: skip

# What other libraries can switch on in any of their models and no published family here does.
NEVER: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
}


@contextmanager
def _of_the_right_kind(config: Mapping[str, Any], keys: Set[str]) -> Iterator[None]:
    """A list where a number should be shows when it is computed with, and is a sentence."""
    try:
        yield
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        said = ", ".join(f"{key} {config[key]!r:.80}" for key in sorted(keys & config.keys()))
        raise QkvError(f"The config.json has {said or 'too little'}, of which no model can be made.") from error


@dataclass(frozen=True)
class ConfigMap:
    """The keys of one family's `config.json`."""

    name: str  # of the family, as messages call it
    sizes: tuple[Size, ...]
    fixed: Mapping[str, tuple[Any, ...]]  # must be there: the values that mean what we have, the one we write first
    fixed_by_default: Mapping[str, tuple[Any, ...]]  # the same, where an absent key means what we have
    never: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the same, of old files: never written
    other: frozenset[str] = frozenset()  # about other things, in this family
    same: tuple[tuple[str, str], ...] = ()  # a second name for a size, which must agree with it where it is there
    together: tuple[Together, ...] = ()
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda sizes: sizes  # fills in what follows from the rest

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Our sizes by name; a key that asks for another computation, an unknown and a missing one are errors."""
        ours = {size.theirs for size in self.sizes}
        never = {key: meant for key, meant in NEVER.items() if key not in ours}
        by_default = {**never, **self.never, **self.fixed_by_default}
        for key, meant in {**self.fixed, **by_default}.items():
            if key not in config and key in self.fixed:
                raise QkvError(f"This is no {self.name} config.json: it lacks {key}, which should be {meant[0]!r}.")
            if config.get(key, meant[0]) not in meant:
                raise QkvError(f"{self.name} here has {key} {meant[0]!r}; the config.json asks for {config[key]!r}.")
        for second, first in self.same:
            if config.get(second) is not None and config[second] != config.get(first):
                raise QkvError(f"The config.json has {first} {config.get(first)!r} but {second} {config[second]!r}.")
        known = {*ours, *self.fixed, *by_default, *ABOUT_OTHER_THINGS, *self.other}
        known |= {second for second, _ in self.same}.union(*(keys.theirs for keys in self.together))
        if unknown := sorted(set(config) - known):
            listed = ", ".join(unknown)
            raise QkvError(f"The config.json has keys that could change what {self.name} computes: {listed}.")
        if absent := [size.theirs for size in self.sizes if size.absent is REQUIRED and size.theirs not in config]:
            raise QkvError(f"The config.json lacks {', '.join(sorted(absent))}.")
        sizes: dict[str, Any] = {}
        for size in self.sizes:
            with _of_the_right_kind(config, {size.theirs}):
                sizes[size.ours] = size.to_ours(config.get(size.theirs, size.absent))
        for keys in self.together:
            with _of_the_right_kind(config, keys.theirs):
                sizes |= keys.read(config)
        with _of_the_right_kind(config, ours):
            return self.complete(sizes)

    def write(self, sizes: Any) -> dict[str, Any]:
        """Their `config.json` for our sizes."""
        fixed = {key: meant[0] for key, meant in {**self.fixed, **self.fixed_by_default}.items()}
        written = fixed | {size.theirs: size.to_theirs(getattr(sizes, size.ours)) for size in self.sizes}
        for keys in self.together:
            written |= keys.write(sizes)
        return written
