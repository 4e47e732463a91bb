"""The file behind `python -m sglang.launch_server` in the lab's environment."""

import sys
import sysconfig
from pathlib import Path

from diag.lab.engine.launch import main

if __name__ == "__main__":
    main(Path(sysconfig.get_path("purelib")), sys.argv[1:])
