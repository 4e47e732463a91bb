"""The file behind `python -m sglang.launch_server` in the lab's environment."""

import sys
import sysconfig
from pathlib import Path

from diag.lab.engine.launch import main


def installed() -> Path:
    """The folder that `import sglang` would take: PYTHONPATH goes before site-packages, as for any package."""
    folders = (Path(entry) for entry in sys.path if entry)
    found = (folder for folder in folders if (folder / "sglang" / "__init__.py").is_file())
    return next(found, Path(sysconfig.get_path("purelib")))


if __name__ == "__main__":
    main(installed(), sys.argv[1:])
