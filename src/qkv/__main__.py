"""`python -m qkv` is `qkv`, but that Python itself looks into the current folder first: so `python -P -m qkv`.

What is opened from here on does not come from there, unless qkv does.
"""

import os
import sys

if __name__ == "__main__":  # a process that qkv starts reads this file too
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path[0] in ("", os.getcwd()) and sys.path[0] != home:
        del sys.path[0]

    from qkv.cli.main import main

    sys.exit(main())
