"""What is no rename: places that are written anew."""

from __future__ import annotations





# ---------------------------------------------------------------------------------------------------------------------
# 6. Patches: where a rename needs a line of its own. Paths and snippets are those after all of the above. A snippet
#    that is not there is told, and the rest goes on; one whose outcome is there already is passed over.
# ---------------------------------------------------------------------------------------------------------------------

PATCHES: list[tuple[str, str, str]] = [
    (
        "src/qkv/weights/load.py",
        '    sizes = family.sizes(config["sizes"])\n',
        '    sizes = family.sizes(upgraded_sizes(config["sizes"]))\n',
    ),
    (
        "src/qkv/weights/load.py",
        "from qkv.weights.sentence_folder import read_sentence_folder\n",
        "from qkv.weights.sentence_folder import read_sentence_folder\nfrom qkv.weights.upgrade import upgraded_sizes\n",
    ),
    (
        "src/qkv/api/consolidating.py",
        'family.sizes(settings["sizes"])',
        'family.sizes(upgraded_sizes(settings["sizes"]))',
    ),
    (
        "src/qkv/api/consolidating.py",
        "from qkv.weights.save import save_model\n",
        "from qkv.weights.save import save_model\nfrom qkv.weights.upgrade import upgraded_sizes\n",
    ),
    (
        "src/qkv/train/run_folder.py",
        '                raise QkvError(f"The file {file} is not the description of a {FORMAT} run.")\n            found',
        '                raise QkvError(f"The file {file} is not the description of a {FORMAT} run.")\n'
        "            before = upgraded_run(before)\n            found",
    ),
    (
        "src/qkv/train/history.py",
        "    return RunHistory(folder, described, ",
        "    return RunHistory(folder, upgraded_run(described), ",
    ),
    (
        "src/qkv/api/comparing.py",
        "must_agree(read_json(place / VARIANT), ",
        "must_agree(upgraded_variant(read_json(place / VARIANT)), ",
    ),
    (
        "src/qkv/cli/config_file.py",
        '        group, _, name = spelled.replace("-", "_").rpartition(".")\n',
        '        group, _, name = spelled.replace("-", "_").rpartition(".")\n'
        "        name, value = upgraded_option(name, value, known)\n",
    ),
    (
        "src/qkv/cli/compare.py",
        'EXAMPLES = "200steps',
        'FIELDS = {"lr": "learning_rate"}  # of a setup, where a key is spelled otherwise\nEXAMPLES = "200steps',
    ),
    (
        "src/qkv/cli/compare.py",
        'name.replace("-", "_"): number_of',
        'FIELDS.get(name, name.replace("-", "_")): number_of',
    ),
    (
        "src/qkv/models/text_model.py",
        "        self.has_kv_cache = all(attention.has_kv_cache for attention in attentions)  # whether a cache saves reading a "
        "row anew\n",
        "        # Whether a cache saves reading a row anew.\n"
        "        self.has_kv_cache = all(attention.has_kv_cache for attention in attentions)\n",
    ),
    # One field for a form becomes two, as the options of `qkv run` are.
    (
        "src/qkv/generate/language.py",
        "    form: Form | None = None  # JSON of a schema, or text of a pattern\n",
        "    json_schema: Mapping[str, Any] | bool | str | None = None  # JSON of this schema is written\n"
        "    pattern: str | None = None  # what this regular expression matches is written\n",
    ),
    (
        "src/qkv/generate/language.py",
        "`form` ask for",
        "`json_schema` or `pattern` ask for",
    ),
    (
        "src/qkv/generate/language.py",
        "        if self.alternatives < 0:\n",
        "        if self.json_schema is not None and self.pattern is not None:\n"
        '            raise QkvError("An output has one form: give json_schema or pattern.")\n'
        "        if self.alternatives < 0:\n",
    ),
    (
        "src/qkv/generate/language.py",
        "\n\nDEFAULTS = Options()",
        "\n    @property\n    def constrained(self) -> bool:\n"
        '        """Whether an output has a form that is demanded of it."""\n'
        "        return self.json_schema is not None or self.pattern is not None\n\n\nDEFAULTS = Options()",
    ),
    (
        "src/qkv/generate/language.py",
        "        if options.form is not None:\n            from qkv.generate.constrain import Constraint, Vocabulary\n",
        "        if options.constrained:\n            from qkv.generate.constrain import Constraint, Vocabulary, form_of\n",
    ),
    ("src/qkv/generate/language.py", "Constraint(options.form, ", "Constraint(form_of(options.json_schema, options.pattern), "),
    ("src/qkv/generate/language.py", "import Form, Vocabulary\n", "import Vocabulary\n"),
    ("src/qkv/generate/language.py", "from collections.abc import Iterable, Iterator, Sequence\n", "from collections.abc import Iterable, Iterator, Mapping, Sequence\n"),
    ("src/qkv/generate/language.py", "from typing import TYPE_CHECKING, Self, cast\n", "from typing import TYPE_CHECKING, Any, Self, cast\n"),
    (
        "src/qkv/generate/constrain.py",
        "class Vocabulary:\n",
        'def form_of(json_schema: Mapping[str, Any] | bool | str | None, pattern: str | None) -> Form:\n'
        '    """What is asked for by one of the two."""\n'
        "    if pattern is not None:\n        return Regex(pattern)\n"
        "    assert json_schema is not None\n    return JsonSchema(json_schema)\n\n\n"
        "class Vocabulary:\n",
    ),
    (
        "src/qkv/cli/run_language.py",
        "form=json_schema_of(asked),",
        "json_schema=json_schema_of(asked),\n        pattern=asked.regex,",
    ),
    ("src/qkv/cli/run_language.py", "if options.form is not None and any", "if options.constrained and any"),
    (
        "src/qkv/cli/run_language.py",
        """def json_schema_of(asked: GenerationOptions) -> "Form | None":
    if asked.regex is None and asked.json_schema is None:
        return None
    from qkv.generate.constrain import JsonSchema, Regex

    if asked.regex is not None:
        return Regex(asked.regex)
    assert asked.json_schema is not None
""",
        """def json_schema_of(asked: GenerationOptions) -> str | None:
    \"\"\"JSON, from where the option says.\"\"\"
    if asked.json_schema is None:
        return None
""",
    ),
    ("src/qkv/cli/run_language.py", "    return JsonSchema(spelled)\n", "    return spelled\n"),
    ("src/qkv/cli/run_language.py", "    from qkv.generate.constrain import Form\n", ""),
]

# Imports that patches need: (file, module, name).
IMPORTS = [
    ("src/qkv/train/run_folder.py", "qkv.weights.upgrade", "upgraded_run"),
    ("src/qkv/train/history.py", "qkv.weights.upgrade", "upgraded_run"),
    ("src/qkv/api/comparing.py", "qkv.weights.upgrade", "upgraded_variant"),
    ("src/qkv/cli/config_file.py", "qkv.weights.upgrade", "upgraded_option"),
    ("src/qkv/weights/load.py", "qkv.weights.upgrade", "upgraded_sizes"),
    ("src/qkv/api/consolidating.py", "qkv.weights.upgrade", "upgraded_sizes"),
]

UPGRADE = '''"""What folders from before some names were changed say, as it is said now. Nobody else knows the old names."""

from collections.abc import Collection, Mapping
from typing import Any

SIZES = {"stretch": "rope_scaling", "stretch_factor": "rope_factor", "sharpness": "attention_factor"}
TRAIN = {"record": "cuda_graph"}  # settings of a training, in run.json
SETUP = {"batch_rows": "batch_size"}  # what a variant of a comparison is made of
OPTIONS = {
    "batch_rows": "batch_size", "learning_rate": "lr", "hidden": "mask_rate", "change": "augment",
    "record": "cuda_graph",
}  # fmt: skip
SIZE = ("desk", "starter")  # a size by its name, alone or with changes behind a comma


def upgraded_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a model, from config.json or run.json."""
    return _renamed(sizes, SIZES)


def upgraded_run(described: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says."""
    settings = described.get("settings")
    if not isinstance(settings, Mapping):
        return dict(described)
    changed = dict(settings)
    for name, names in (("sizes", SIZES), ("train", TRAIN)):
        if isinstance(settings.get(name), Mapping):
            changed[name] = _renamed(settings[name], names)
    return {**described, "settings": changed}


def upgraded_variant(described: Any) -> Any:
    """What the folder of a comparison says of a variant."""
    if not isinstance(described, Mapping):
        return described
    changed = dict(described)
    for name, names in (("setup", SETUP), ("settings", TRAIN)):
        if isinstance(described.get(name), Mapping):
            changed[name] = _renamed(described[name], names)
    if isinstance(changed.get("setup"), dict):
        sizes = changed["setup"].get("sizes")
        changed["setup"]["sizes"] = upgraded_sizes(sizes) if isinstance(sizes, Mapping) else _value("size", sizes)
    return changed


def upgraded_option(name: str, value: Any, known: Collection[str]) -> tuple[str, Any]:
    """An option of a command from a file of options, such as train.toml."""
    if name not in known and OPTIONS.get(name) in known:
        name = OPTIONS[name]
    return name, _value(name, value)


def _value(name: str, value: Any) -> Any:
    if name != "size" or not isinstance(value, str):
        return value
    size, comma, changes = value.partition(",")
    return f"{SIZE[1]}{comma}{changes}" if size == SIZE[0] else value


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What is there under a new name already stays as it is."""
    return {names.get(name, name) if names.get(name) not in values else name: each for name, each in values.items()}
'''

UPGRADE_TEST = '''"""Folders from before some names were changed are read as if they had been written now."""

from dataclasses import asdict
from pathlib import Path

import torch

from qkv.files import checksum_of_json, read_json, write_json
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.weights.load import load_model
from qkv.weights.save import CONFIG_FILE, CONFIG_NOTE, TENSOR_FILE, save_model, tensors_of
from qkv.weights.upgrade import SIZES, upgraded_option, upgraded_run, upgraded_sizes, upgraded_variant
from safetensors.torch import save_file

YARN = {
    "vocabulary": 23, "positions": 32, "width": 16, "hidden": 24, "heads": 2, "key_value_heads": 2, "layers": 1,
    "rope_scaling": "yarn", "rope_factor": 2.0, "trained_positions": 16, "fast_turns": 32.0, "attention_factor": 1.5,
}  # fmt: skip
OLD = {new: old for old, new in SIZES.items()}


def test_a_model_with_sizes_by_their_old_names_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("llama", find_family("llama").sizes(YARN), HeadChoice("language"))
    save_model(model, tmp_path)
    config = read_json(tmp_path / CONFIG_FILE)
    config["sizes"] = {OLD.get(name, name): value for name, value in config["sizes"].items()}
    write_json(tmp_path / CONFIG_FILE, config)
    save_file(tensors_of(model), tmp_path / TENSOR_FILE, {CONFIG_NOTE: checksum_of_json(config)})
    assert {"stretch", "stretch_factor", "sharpness"} <= read_json(tmp_path / CONFIG_FILE)["sizes"].keys()
    assert asdict(load_model(tmp_path).sizes) == asdict(model.sizes)


def test_what_is_said_now_stays_as_it_is() -> None:
    assert upgraded_sizes(YARN) == YARN
    said = {"settings": {"sizes": YARN, "train": {"cuda_graph": None}, "family": "llama"}, "sessions": []}
    assert upgraded_run(said) == said
    assert upgraded_run({"settings": None}) == {"settings": None}


def test_a_run_says_what_it_said_before() -> None:
    before = {"format": "qkv-run-1", "settings": {"sizes": {"stretch": "none"}, "train": {"record": None, "seed": 1}}}
    now = {"format": "qkv-run-1", "settings": {"sizes": {"rope_scaling": "none"}, "train": {"cuda_graph": None, "seed": 1}}}
    assert upgraded_run(before) == now


def test_a_variant_of_a_comparison() -> None:
    before = {"setup": {"batch_rows": 4, "sizes": "desk"}, "settings": {"record": True}, "length": 8}
    assert upgraded_variant(before) == {
        "setup": {"batch_size": 4, "sizes": "starter"}, "settings": {"cuda_graph": True}, "length": 8,
    }  # fmt: skip
    assert upgraded_variant(None) is None


def test_options_of_a_file() -> None:
    assert upgraded_option("batch_rows", 4, ["batch_size", "lr"]) == ("batch_size", 4)
    assert upgraded_option("learning_rate", 0.1, ["batch_size", "lr"]) == ("lr", 0.1)
    assert upgraded_option("hidden", 4, ["hidden"]) == ("hidden", 4)  # a command that still has it
    assert upgraded_option("size", "desk", ["size"]) == ("size", "starter")
    assert upgraded_option("size", "desk,layers=2", ["size"]) == ("size", "starter,layers=2")
    assert upgraded_option("size", "base", ["size"]) == ("size", "base")
'''

NEW_FILES = {
    "src/qkv/weights/upgrade.py": UPGRADE,
    "tests/weights/test_upgrade.py": UPGRADE_TEST,
}
# Files that hold old words for a reason, and are left as they are.
SKIPPED = {*NEW_FILES, "tests/test_words.py", "CHANGELOG.md", "LOG.md"}
