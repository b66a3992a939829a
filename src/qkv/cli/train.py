"""`qkv train`: a model of one's own from a table of one's own."""

import typer

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
train.command("text-to-text", short_help="Learn to turn one text into another: translate, summarise, …")(text_to_text)
train.command("lm", short_help="Learn to go on with texts.")(lm)
train.command("mlm", short_help="Learn what hidden words were, as BERT did.")(mlm)
train.command("t5", short_help="Learn to fill gaps in texts, as T5 did.")(t5)
train.command("classify", short_help="Learn the label of a text.")(classify)
train.command("sentiment", short_help="Learn to tell good reviews from bad ones.")(sentiment)
train.command("pairs", short_help="Learn how two texts stand to each other.")(pairs)
train.command("rate", short_help="Learn a number for a text, or for two.")(rate)
train.command("tag", short_help="Learn the tag of every word.")(tag)
train.command("answer", short_help="Learn where the answer to a question stands.")(answer)
train.command("embed", short_help="Learn vectors that are alike where texts are.")(embed)
train.command("images", short_help="Learn what pictures show.")(images)
train.command("sounds", short_help="Learn what is heard.")(sounds)
train.command("frames", short_help="Learn from sound alone what hidden frames were, as wav2vec 2.0 did.")(frames)
train.command("speech", short_help="Learn to write down speech.")(speech)
train.command("patches", short_help="Learn from pictures without labels what hidden patches were.")(patches)
train.command("captions", short_help="Learn which texts go with which pictures, as CLIP did.")(captions)
train.command("objects", short_help="Learn to find things in pictures, as DETR does.")(objects)


@train.callback()
def every_task() -> None:
    """Train a model on your own data: one command for each kind of task.

    \b
    Example:
      printf 'word\\tphonemes\\ncat\\tK AE T\\ndog\\tD AO G\\n' > few.tsv
      qkv train text-to-text --data few.tsv --source word --target phonemes \\
        --size width=32,layers=1 --steps 20 --out runs/few
    """
