"""What the page of `recipes/difficulty_report.py` says whatever the figures are."""

HEAD = """# Why deep Transformers are hard to train

*Written by `recipes/difficulty_report.py` from the runs beside this page, as is what it says of them.*

A residual block can join its branch to the stream in more than one way, and that decides whether a deep stack learns:

| wiring | $x_i$, from $x = x_{i-1}$ | family |
|---|---|---|
| [post-norm](../../papers/vaswani2017.md) | $\\mathrm{LN}(x + f_i(x))$ | `transformer` |
| [pre-norm](../../papers/xiong2020.md) | $x + f_i(\\mathrm{LN}(x))$ | `transformer-prenorm` |
| [Admin](../../papers/liu2020.md) | $\\mathrm{LN}(x \\odot \\omega_i + f_i(x))$, ω profiled | `transformer-admin` |
| [ReZero](../../papers/bachlechner2020.md) | $x + \\alpha_i f_i(x)$, α = 0 at first | `transformer-rezero` |
| [DeepNorm](../../papers/wang2022.md) | $\\mathrm{LN}(\\alpha x + f_i(x))$, α by depth | `transformer-deepnorm` |

Two effects are told apart [by Liu et al.](../../papers/liu2020.md): *unbalanced gradients*, which vanish on their way
down a post-norm decoder, and *amplification*: a small change of the weights moves the output of a post-norm stack by an
amount that grows with its depth. The first, they say, is mended by an adaptive optimiser; the second is what makes
training fail.
"""

MEANING = """## On a model of one's own

```
qkv train text-to-text --data pairs.tsv --source en --target de --family transformer-admin \\
  --size width=256,hidden=1024,layers=18 --gradient-norms --out runs/deep
qkv layers runs/deep 'A text to measure how a change of the weights grows.'
```

`--gradient-norms` records the norms of the gradient and of the update of every layer in `metrics.jsonl`; `qkv layers`
draws them over the steps, and with texts the change of the output by depth. In Python these are
`TrainSettings(gradient_norms=True)`, `qkv.look_at_layers`, and the measures themselves in `qkv.look.difficulty`:
`output_change`, `stream_gradient_norms`, `parameter_gradient_norms`, `branch_shares`. `qkv.parts.admin.fold_admin`
turns a trained Admin stack into post-norm, all but the first ω.
"""

RECIPE = """```
python recipes/difficulty.py --data DATA --out runs/difficulty --steps {steps} --depths {depths}
python recipes/difficulty_report.py difficulty runs/difficulty
```
"""
