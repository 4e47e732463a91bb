"""The file behind `python -m sglang.launch_server`, and vLLM's, in the lab's environment."""

import sys
import sysconfig
from pathlib import Path

from diag.lab.engine.launch import main


def installed() -> Path:
    """The folder that `import sglang` would take: PYTHONPATH goes before site-packages, as for any package."""
    folders = (Path(entry) for entry in sys.path if entry)
    found = (folder for folder in folders if (folder / "sglang" / "__init__.py").is_file())
    return next(found, Path(sysconfig.get_path("purelib")))


def start(argv: list[str]) -> None:
    """By the word that started it: vLLM's module, its script, or else SGLang's."""
    if argv[0].endswith("vllm") or "vllm.entrypoints.openai.api_server" in sys.orig_argv[1:4]:
        main(installed(), argv[2:] if argv[1:2] == ["serve"] else argv[1:], "vllm")
    else:
        main(installed(), argv[1:])


if __name__ == "__main__":
    start(sys.argv)
