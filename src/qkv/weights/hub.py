"""Models by their name on the Hugging Face hub: fetched once, kept in the hub's own cache, told by their revision."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from qkv.errors import QkvError

IDENTIFIER = re.compile(r"(?P<name>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?")
MODULES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "[0-9]_*/config.json")
TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model", "source.spm", "target.spm", "chat_template.jinja",
)  # fmt: skip
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors", "[0-9]_*/model.safetensors")
PROCESSOR = "preprocessor_config.json"  # how pictures and sounds are prepared
PROCESSORS = (PROCESSOR, "processor_config.json")  # newer folders may keep it inside the second
NEEDED = ("config.json", "generation_config.json", *PROCESSORS, *WEIGHTS, *TOKENIZERS, *MODULES)
PACKAGED = Path(__file__).with_name("packaged")  # folders of models that come with qkv, each with how it was made
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")


def say_aside(line: str) -> None:
    print(line, file=sys.stderr)


def local_folder(
    name: Path | str,
    *,
    offline: bool | None = None,
    pickles: bool = False,
    say: Callable[[str], None] = say_aside,
) -> Path:
    """The folder itself, or for `owner/name` and `owner/name@revision` the folder it was fetched to; or a packaged one.

    What exists here is never looked for elsewhere. The revision that was fetched is said, so that it can be asked for
    again. `offline` takes only what was fetched before, as the environment's HF_HUB_OFFLINE does. Pickles, which
    `qkv convert` rewrites, are fetched only if asked for.
    """
    path = Path(name)
    meant = IDENTIFIER.fullmatch(str(name))
    if not path.exists() and str(name) in packaged():
        say(f"{name}: the model of this name that is packaged with qkv.")
        return PACKAGED / name
    if path.exists() or meant is None or path.parent.is_dir():
        return path
    repository, revision = meant["name"], meant["revision"]
    patterns = [*NEEDED, *(PICKLES if pickles else ())]
    folder = _fetch(repository, revision, patterns, offline)
    commit = folder.name
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise QkvError(
            f"The hub's {repository} has no model.safetensors: if its weights are an old pickle, "
            f"`qkv convert {repository} NEW` fetches and rewrites them."
        )
    say(f"{repository} at revision {commit}: {repository}@{commit} gives the same again.")
    return folder


def packaged() -> list[str]:
    """The names of the models that come with qkv."""
    return sorted(config.parent.name for config in PACKAGED.glob("*/config.json"))


def _fetch(repository: str, revision: str | None, patterns: list[str], offline: bool | None) -> Path:
    import huggingface_hub
    from huggingface_hub import constants, errors

    shown = repository if revision is None else f"{repository}@{revision}"
    offline = constants.HF_HUB_OFFLINE if offline is None else offline
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=patterns, local_files_only=offline
            )
        )
    except errors.GatedRepoError as error:
        raise QkvError(
            f"The hub's {repository} is open only to those who accepted its terms: accept them on its page, then log "
            "in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise QkvError(f"The hub's {repository} has no revision {revision}.") from error
    except errors.RepositoryNotFoundError as error:
        raise QkvError(
            f"There is no folder {shown}, and no model {repository} on the hub that you may read."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = "and qkv is told to stay offline" if offline else "and the hub cannot be reached"
        raise QkvError(f"There is no folder {shown}, the hub's {shown} was not fetched before, {why}.") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise QkvError(f"The hub's {shown} cannot be fetched: {' '.join(str(error).split())[:200]}") from error
