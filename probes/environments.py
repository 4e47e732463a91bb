"""Python environments of this machine and what is installed in them, read from their files; nothing is imported.

An environment is where an interpreter looks: its prefix, the site-packages folders in the order of sys.path, and
whatever comes before them (PYTHONPATH, the working folder of `python -m`) or is linked in (.pth, editable).
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple
from urllib.parse import unquote, urlparse

from . import _proc

Json = Dict[str, Any]

ENGINES = ("sglang", "vllm")
_NAMES = """sglang vllm torch triton transformers tokenizers numpy xgrammar outlines llguidance flashinfer-python
flashinfer-cubin sglang-kernel sgl-kernel flash-attn deep-gemm deep-ep aiter mooncake-transfer-engine lmcache
compressed-tensors cuda-python cuda-bindings torchao torchvision safetensors setproctitle uvloop"""
MATTER = set(_NAMES.split())  # and every nvidia-*
_ASK = (
    "import json,site,sys;print(json.dumps([sys.prefix,sys.version.split()[0],"
    "site.getsitepackages()+[site.getusersitepackages()]]))"
)


class Interpreter(NamedTuple):
    """An interpreter and how it is run. root: /proc/PID/root for a process in another mount namespace, else ""."""

    python: str
    env: Mapping[str, str] = {}
    cwd: Optional[str] = None  # only where the working folder is on sys.path (python -m)
    root: str = ""


def canonical(name: str) -> str:
    """Normalised distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(args: Mapping[str, Any], talk: object = None) -> Json:
    """{"packages": [...], "python": path or null} -> {"environments": [...]}; see `describe`."""
    return {"environments": find(args.get("python"), [], args.get("packages") or [])}


def find(python: Optional[str], running: Iterable[Interpreter], packages: Sequence[str]) -> List[Json]:
    """Environments, most telling first: of running servers, the one named, then the usual places. No doubles."""
    found: Dict[Tuple[str, ...], Json] = {}
    explicit = [Interpreter(os.path.expanduser(python), os.environ)] if python else []
    interpreters = [*running, *explicit, *usual_places()]
    # In threads: a shim must be asked, which takes its time.
    for document in ThreadPoolExecutor(8).map(lambda one: describe(one, packages), interpreters):
        if document is not None:
            found.setdefault((*document["search_path"], repr(document["overlays"])), document)
    return list(found.values())[:24]


def named(python: str) -> Optional[Json]:
    """The environment of one interpreter, or None."""
    return describe(Interpreter(os.path.expanduser(python), os.environ))


def usual_places() -> List[Interpreter]:
    home = os.path.expanduser("~")
    env = os.environ
    folders = [env.get("VIRTUAL_ENV", ""), env.get("CONDA_PREFIX", "")]
    folders += [
        f"{home}/venv",
        f"{home}/.venv",
        "/opt/venv",
        "/workspace/.venv",
        "/venv",
        *glob.glob(f"{home}/*/.venv"),
    ]
    for conda in (f"{home}/miniconda3", f"{home}/anaconda3", f"{home}/miniforge3", "/opt/conda"):
        folders += [conda, *glob.glob(f"{conda}/envs/*")]
    on_path = [path for path in map(shutil.which, ("python3", "python")) if path]
    for root in {os.path.dirname(os.path.dirname(path)) for path in on_path if "/shims/" in path}:
        folders += glob.glob(f"{root}/versions/*") + glob.glob(f"{root}/installs/python/*")  # of pyenv, of asdf
    pythons = [f"{folder}/bin/python" for folder in folders if folder]
    pythons += [path for path in on_path if "/shims/" not in path]
    return [Interpreter(path, env) for path in pythons]


def describe(interpreter: Interpreter, packages: Sequence[str] = ()) -> Optional[Json]:
    """One environment, or None where there is none:
    {python, prefix, kind: venv|conda|system, python_version, site_packages (the one that holds an engine, else
     the first), search_path, packages {name: version}, duplicates {name: [versions]}, editable {name: folder},
     overlays [{package, path, from: PYTHONPATH|cwd|pth|editable}] (other places the package can come from)}"""
    layout = _layout(interpreter)
    if layout is None:
        return None
    prefix, kind, version, folders = layout
    wanted = MATTER | {canonical(name) for name in packages}
    versions: Dict[str, List[str]] = {}
    editable: Dict[str, str] = {}
    for folder in folders:
        for name, number, info in distributions(folder):
            if name in wanted or name.startswith("nvidia-"):
                versions.setdefault(name, []).append(number)
                source = _editable(info)
                if source is not None:
                    editable.setdefault(name, interpreter.root + source)
    holds = [folder for folder in folders if any(os.path.isdir(f"{folder}/{engine}") for engine in ENGINES)]
    tops = sorted({*ENGINES, *(name.replace("-", "_") for name in packages)})
    return {
        "python": interpreter.root + interpreter.python,
        "prefix": prefix,
        "kind": kind,
        "python_version": version,
        "site_packages": (holds or folders)[0],
        "search_path": folders,
        "packages": {name: numbers[0] for name, numbers in sorted(versions.items())},
        "duplicates": {name: numbers for name, numbers in versions.items() if len(numbers) > 1},
        "editable": editable,
        "overlays": _overlays(interpreter, folders, editable, tops),
    }


def locate(environment: Json, top: str) -> Optional[str]:
    """The folder that `import top` takes its package from, by the order of sys.path."""
    overlays = [overlay for overlay in environment["overlays"] if overlay["package"] == top]
    before = [overlay["path"] for overlay in overlays if overlay["from"] in ("cwd", "PYTHONPATH")]
    after = [overlay["path"] for overlay in overlays]
    for folder in [*before, *environment["search_path"], *after]:
        if os.path.exists(f"{folder}/{top}"):
            return str(folder)
    return None


def distributions(folder: str) -> List[Tuple[str, str, str]]:
    """(canonical name, version, dist-info folder) of each distribution in a site-packages folder."""
    found = []
    for entry in _entries(folder, ".dist-info"):
        name, _, version = entry[: -len(".dist-info")].partition("-")
        found.append((canonical(name), version, f"{folder}/{entry}"))
    return found


def _entries(folder: str, suffix: str) -> List[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(suffix))
    except OSError:
        return []


def _editable(info: str) -> Optional[str]:
    """The source folder of an editable install, by its direct_url.json."""
    try:
        document = json.loads(_proc.read(f"{info}/direct_url.json") or b"{}")
        if document.get("dir_info", {}).get("editable"):
            return unquote(urlparse(document["url"]).path)
    except (ValueError, KeyError, AttributeError):
        pass
    return None


def _overlays(at: Interpreter, folders: List[str], editable: Mapping[str, str], tops: Sequence[str]) -> List[Json]:
    places = [("cwd", at.root + at.cwd)] if at.cwd else []
    for entry in at.env.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.isabs(entry):
            places.append(("PYTHONPATH", at.root + entry))
    for folder in folders:
        for name in _entries(folder, ".pth"):
            for line in _proc.text(_proc.read(f"{folder}/{name}") or b"").splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    places.append(("pth", os.path.join(folder, line.strip())))
    for source in editable.values():
        places += [("editable", os.path.join(source, below)) for below in ("", "python", "src")]
    found: List[Json] = []
    seen: Set[Tuple[str, str]] = set()
    for origin, path in places:
        path = os.path.normpath(path)
        for top in tops:
            if path not in folders and (top, path) not in seen and os.path.isdir(f"{path}/{top}"):
                seen.add((top, path))
                found.append({"package": top, "path": path, "from": origin})
    return found


# --- where an interpreter looks ---------------------------------------------------------------------------


def _layout(at: Interpreter) -> Optional[Tuple[str, str, Optional[str], List[str]]]:
    """(prefix, kind, version, site-packages folders that exist) of an interpreter."""
    python = at.root + at.python
    if not os.path.exists(python) and not os.path.islink(python):
        return None
    for path in _links(python, at.root):
        prefix = os.path.dirname(os.path.dirname(path))
        config = _config(f"{prefix}/pyvenv.cfg")
        version = config.get("version") or config.get("version_info") or _conda_version(prefix)
        kind = "venv" if config else "conda" if os.path.isdir(f"{prefix}/conda-meta") else "system"
        folders = _site_dirs(prefix, _minor(version) or _minor_of(path, at.root), kind == "system", at)
        if config.get("include-system-site-packages") == "true":
            base = _layout(at._replace(python=config.get("home", "/usr/bin") + "/python3"))
            folders += base[3] if base else []
        if folders:
            return prefix, kind, version or _minor(folders[0]), folders
    return None if at.root else _ask(python)


def _links(path: str, root: str) -> List[str]:
    """The path, then what it links to, step by step: a venv's python links to its base's."""
    found = [path]
    while os.path.islink(found[-1]) and len(found) < 8:
        target = os.readlink(found[-1])
        found.append(root + target if os.path.isabs(target) else os.path.join(os.path.dirname(found[-1]), target))
    return [os.path.normpath(link) for link in found]


def _site_dirs(prefix: str, minor: Optional[str], system: bool, at: Interpreter) -> List[str]:
    version = f"python{minor or '3*'}"
    patterns = [f"{prefix}/lib/{version}/site-packages", f"{prefix}/lib64/{version}/site-packages"]
    if system:
        home = at.env.get("HOME", "")
        patterns.insert(0, f"{at.root}{home}/.local/lib/{version}/site-packages")
        if prefix == at.root + "/usr":
            patterns.append(f"{prefix}/local/lib/{version}/dist-packages")
            patterns.append(f"{prefix}/lib/python3/dist-packages")
    found: List[str] = []
    for pattern in patterns:
        for folder in sorted(glob.glob(pattern), reverse=True):
            if not any(os.path.samefile(folder, other) for other in found):
                found.append(folder)
    return found


def _config(path: str) -> Dict[str, str]:
    pairs = (line.partition("=") for line in _proc.text(_proc.read(path) or b"").splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _conda_version(prefix: str) -> Optional[str]:
    for path in glob.glob(f"{prefix}/conda-meta/python-3.*.json"):
        return os.path.basename(path).split("-")[1]
    return None


def _minor(version: Optional[str]) -> Optional[str]:
    found = re.search(r"3\.\d+", version or "")
    return found.group() if found else None


def _minor_of(python: str, root: str) -> Optional[str]:
    """ "3.11", from a link's end such as /usr/bin/python3.11."""
    return _minor(os.path.basename(_links(python, root)[-1]))


def _ask(python: str) -> Optional[Tuple[str, str, Optional[str], List[str]]]:
    """The interpreter's own answer, where its files do not tell (a shim, a layout of its own)."""
    said, _ = _proc.command([python, "-I", "-B", "-c", _ASK], 5)
    try:
        prefix, version, folders = json.loads(said)
    except ValueError:
        return None
    folders = [folder for folder in folders if os.path.isdir(folder)]
    kind = "venv" if os.path.exists(f"{prefix}/pyvenv.cfg") else "system"
    return (prefix, kind, version, folders) if folders else None
