"""`qkv train`: a model of one's own from a table of one's own."""

import typer

from qkv.cli.config_file import configurable
from qkv.cli.groups import Command
from qkv.cli.train_captions import captions
from qkv.cli.train_images import images
from qkv.cli.train_objects import objects
from qkv.cli.train_pairs import text_to_text
from qkv.cli.train_patches import patches
from qkv.cli.train_rate import rate
from qkv.cli.train_sounds import sounds
from qkv.cli.train_spans import answer, embed
from qkv.cli.train_speech import frames, speech
from qkv.cli.train_t5 import t5
from qkv.cli.train_tasks import classify, pairs, sentiment, tag
from qkv.cli.train_text import lm, mlm

train = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def task(name: str, command: Command, summary: str) -> None:
    """Every task takes a file of options and keeps what it was told."""
    train.command(name, short_help=summary)(configurable(command))


task("text-to-text", text_to_text, "Learn to turn one text into another: translate, summarise, …")
task("lm", lm, "Learn to go on with texts.")
task("mlm", mlm, "Learn what hidden words were, as BERT did.")
task("t5", t5, "Learn to fill gaps in texts, as T5 did.")
task("classify", classify, "Learn the label of a text.")
task("sentiment", sentiment, "Learn to tell good reviews from bad ones.")
task("pairs", pairs, "Learn how two texts stand to each other.")
task("rate", rate, "Learn a number for a text, or for two.")
task("tag", tag, "Learn the tag of every word.")
task("answer", answer, "Learn where the answer to a question stands.")
task("embed", embed, "Learn vectors that are alike where texts are.")
task("images", images, "Learn what pictures show.")
task("sounds", sounds, "Learn what is heard.")
task("frames", frames, "Learn from sound alone what hidden frames were, as wav2vec 2.0 did.")
task("speech", speech, "Learn to write down speech.")
task("patches", patches, "Learn from pictures without labels what hidden patches were.")
task("captions", captions, "Learn which texts go with which pictures, as CLIP did.")
task("objects", objects, "Learn to find things in pictures, as DETR does.")


@train.callback()
def every_task() -> None:
    """Train a model on your own data: one command for each kind of task.

    \b
    Example:
      printf 'word\\tphonemes\\ncat\\tK AE T\\ndog\\tD AO G\\n' > few.tsv
      qkv train text-to-text --data few.tsv --source word --target phonemes \\
        --size width=32,layers=1 --steps 20 --out runs/few
    """
