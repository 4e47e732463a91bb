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


def start(flags: list[str]) -> None:
    """By the word that started Python: vLLM's script or module, or else SGLang's."""
    words = sys.orig_argv[1:4]
    if words and Path(words[0]).name == "vllm":
        main(installed(), flags[flags[:1] == ["serve"] :], "vllm")
    elif "vllm.entrypoints.openai.api_server" in words:
        main(installed(), flags, "vllm")
    else:
        main(installed(), flags)


if __name__ == "__main__":
    start(sys.argv[1:])
