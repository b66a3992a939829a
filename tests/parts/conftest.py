"""Some virtual machines announce AMX and then fault on its first bfloat16 product: the tests do without it."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
