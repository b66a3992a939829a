"""Switch Transformer as Hugging Face's transformers saves it: T5's names, each expert under its own number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qkv.errors import QkvError
from qkv.models.head_choice import HeadChoice
from qkv.models.switch import SwitchSizes, has_experts
from qkv.weights.config_map import ConfigMap, Size, Together, activation_of, their_activation
from qkv.weights.maps.t5 import BUCKETS, MODULES
from qkv.weights.published import PublishedFamily
from qkv.weights.rules import Copy, Gather, Map, Rename, rename_modules

FEED_FORWARDS = {"relu": "relu", "gelu_tanh": "gelu"}  # by their activations
MAPS = (("wi", "inner"), ("wo", "outer"))


def rules(sizes: SwitchSizes, head: HeadChoice | None) -> Map:
    shared = "shared.weight"
    return [
        Copy("encoder.embed_tokens.weight", of=shared),
        Copy("decoder.embed_tokens.weight", of=shared),
        Copy("lm_head.weight", of=shared) if sizes.tied else Rename("lm_head.weight", "head.weight"),
        Rename(shared, "source.tokens.weight"),
        Rename(f"encoder.{BUCKETS}", "encoder.bias.weight"),
        Rename(f"decoder.{BUCKETS}", "decoder.bias.weight"),
        *rename_modules([names for names in MODULES if "DenseReluDense" not in names[0]], ("weight",)),
        *_feed_forwards("encoder", 1, sizes.encoder_layers, sizes.encoder_step, sizes.experts),
        *_feed_forwards("decoder", 2, sizes.decoder_layers, sizes.decoder_step, sizes.experts),
    ]


def _feed_forwards(stack: str, place: int, layers: int, step: int, experts: int) -> Iterator[Rename | Gather]:
    """Block by block, since some have experts and others not; `place` is that of the feed-forward in a block."""
    for layer in range(layers):
        theirs, ours = f"{stack}.block.{layer}.layer.{place}.mlp", f"{stack}.blocks.{layer}.feed_forward.mixer"
        if not has_experts(layer, step):
            yield from rename_modules([(f"{theirs}.{name}", f"{ours}.{own}") for name, own in MAPS], ("weight",))
            continue
        yield from rename_modules([(f"{theirs}.router.classifier", f"{ours}.router")])
        for name, own in MAPS:
            each = tuple(f"{theirs}.experts.expert_{number}.{name}.weight" for number in range(experts))
            yield Gather(each, f"{ours}.{own}.weight")


def _steps(stack: str) -> Together:
    """How many blocks have experts, of which follows every how many-th has."""
    count, step = f"num_sparse_{stack}_layers", f"{stack}_sparse_step"

    def read(config: Mapping[str, Any]) -> dict[str, Any]:
        layers = config.get("num_layers") if stack == "encoder" else _decoder_layers(config)
        sparse = config.get(count, 3)
        if type(sparse) is not int or type(layers) is not int or not 1 <= sparse <= layers:
            raise QkvError(f"The config.json has {count} {sparse!r}: of {layers} layers, 1 or more have experts.")
        if config.get(step, layers // sparse) != layers // sparse:
            raise QkvError(f"The config.json has {step} {config[step]!r}, but {count} {sparse} of {layers} layers.")
        return {f"{stack}_step": layers // sparse}

    return Together(frozenset({count, step}), read, lambda sizes: {count: _sparse(sizes, stack)})


def _decoder_layers(config: Mapping[str, Any]) -> Any:
    return config.get("num_decoder_layers") or config.get("num_layers")


def _sparse(sizes: SwitchSizes, stack: str) -> int:
    """The number from which the other library tells the step; 0 where there is none."""
    layers, step = getattr(sizes, f"{stack}_layers"), getattr(sizes, f"{stack}_step")
    return next((sparse for sparse in range(1, layers + 1) if layers // sparse == step), 0)


def _feed_forward_of(theirs: Any) -> str:
    ours = activation_of(theirs)
    if ours not in FEED_FORWARDS:
        raise QkvError(f"The config.json asks for the activation {theirs!r}; Switch here has relu and gelu_new.")
    return FEED_FORWARDS[ours]


def _their_activation(ours: str) -> str:
    return their_activation(next(activation for activation, name in FEED_FORWARDS.items() if name == ours))


def _complete(sizes: dict[str, Any]) -> dict[str, Any]:
    layers = sizes["decoder_layers"] or sizes["encoder_layers"]
    return {**sizes, "decoder_layers": layers, "scaled": sizes["tied"]}


def _fits(sizes: SwitchSizes) -> bool:
    return (
        sizes.feed_forward in FEED_FORWARDS.values()
        and sizes.capacity is not None
        and sizes.expert_dropout in (None, sizes.dropout)
        and sizes.tied  # without, the other library has three tables of tokens
        and sizes.scaled
        and bool(_sparse(sizes, "encoder") and _sparse(sizes, "decoder"))
    )


SWITCH = PublishedFamily(
    model_type="switch_transformers",
    family="switch",
    config=ConfigMap(
        name="Switch",
        sizes=(
            Size("vocab_size", "vocabulary"),
            Size("d_model", "width"),
            Size("d_kv", "key_width"),
            Size("d_ff", "hidden"),
            Size("num_heads", "heads"),
            Size("num_layers", "encoder_layers"),
            Size("num_decoder_layers", "decoder_layers", absent=None),
            Size("relative_attention_num_buckets", "buckets", absent=32),
            Size("relative_attention_max_distance", "farthest", absent=128),
            Size("dense_act_fn", "feed_forward", "relu", _feed_forward_of, _their_activation),
            Size("layer_norm_epsilon", "epsilon", absent=1e-6),
            Size("dropout_rate", "dropout", absent=0.1),
            Size("tie_word_embeddings", "tied", absent=True),
            Size("num_experts", "experts", absent=8),
            Size("expert_capacity", "capacity", absent=64),
            Size("router_jitter_noise", "jitter", absent=0.01),
            Size("router_bias", "router_bias", absent=False),
        ),
        fixed={"model_type": ("switch_transformers",)},
        fixed_by_default={"is_encoder_decoder": (True,), "is_decoder": (False,), "router_dtype": ("float32",)},
        never={
            "feed_forward_proj": ("relu",),
            "is_gated_act": (False,),
            "router_type": ("tokens_masked",),
            "batch_prioritized_routing": (False,),
            "num_selected_experts": (1,),
        },
        other=frozenset(
            {
                "n_positions",  # of the tasks it was trained on: distances have no bound
                "router_ignore_padding_tokens",  # which the other library does not read
                "add_router_probs",
                "output_router_logits",
                "router_z_loss_coef",  # of training
                "router_aux_loss_coef",
            }
        ),
        together=(_steps("encoder"), _steps("decoder")),
        complete=_complete,
    ),
    architectures={"": "SwitchTransformersForConditionalGeneration"},
    rules=rules,
    fits=_fits,
)
