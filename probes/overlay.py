"""Wheels laid out in a folder of their own, for PYTHONPATH to put before an environment; nothing is installed.

<cache>/wheels/<sha256>/NAME.whl     kept: a second trial of one version fetches and sends nothing
<cache>/overlays/<run>/<sha256>/     unpacked, for one run (overlay_hold)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from . import _proc, overlay_hold
from .overlay_hold import Held, Refused

Json = Dict[str, Any]

SPARE_BYTES = 256 << 20
ASK_S = 60.0
_FACTS = """\
import importlib.metadata as m, json, platform, sys
found = {"version": platform.python_version(), "implementation": sys.implementation.name, "system": sys.platform,
    "machine": platform.machine(), "libc": " ".join(platform.libc_ver()).strip(), "release": platform.mac_ver()[0]}
try: found["installed"] = m.version(sys.argv[1])
except m.PackageNotFoundError: found["installed"] = ""
print(json.dumps(found))
"""
_SEEN = """\
import importlib.metadata as m, importlib.util as u, json, sys
spec = u.find_spec(sys.argv[2])
places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or []) if spec else []
try: version = m.version(sys.argv[1])
except m.PackageNotFoundError: version = ""
print(json.dumps({"version": version, "origin": places[0] if places else ""}))
"""


def run(args: Mapping[str, Any], talk: Any) -> Json:
    """{"python", "package", "env"}: what that interpreter is, and which version of the package it has; or, with
    "mark" and "lease_s", hold overlays until the laptop says stop or is gone.

    messages: have {sha256, name, size_bytes} -> event have {bytes}, as many as are here already; piece {data: base64};
              lay {sha256, name, package, python, env} -> event laid {folder, pythonpath, files, changed,
              version, origin}
    returns:  {"removed": folder, "swept": [runs]}
    """
    try:
        if "mark" not in args:
            return ask(args["python"], args.get("env") or {}, _FACTS, [args["package"]])
        return hold(args, talk)
    except Refused as error:
        return error.document
    except OSError as error:
        return overlay_hold.refusal(error)


def hold(args: Mapping[str, Any], talk: Any) -> Json:
    top, mark = overlay_hold.root(args.get("root")), str(args["mark"])
    swept = overlay_hold.sweep(top, "overlays", _nothing_more)
    with Held(top, "overlays", mark, {"mark": mark}, _nothing_more) as held:
        talk.emit({"event": "holds", "folder": held.folder, "swept": swept})
        store, layers = Store(os.path.join(top, "wheels")), {}  # type: Store, Dict[str, Layer]
        for message in overlay_hold.messages(talk, float(args.get("lease_s", 60))):
            if message["cmd"] == "have":
                have = store.begin(message["sha256"], message["name"], int(message["size_bytes"]))
                talk.emit({"event": "have", "bytes": have})
            elif message["cmd"] == "piece":
                if store.add(message["data"]):
                    talk.emit({"event": "stored"})
            elif message["cmd"] == "lay":
                digest = message["sha256"]
                layer = layers.get(digest)
                if layer is None:
                    layer = layers[digest] = Layer(os.path.join(held.folder, digest[:16]))
                talk.emit(dict(layer.lay(store.path(digest, message["name"]), message), event="laid"))
        overlay_hold.quiet(mark)
    return {"removed": held.folder, "swept": swept}


def _nothing_more(folder: str, note: Mapping[str, Any]) -> None:
    """The folder is all there is."""


class Store:
    """Wheels by their hash. A piece that came before the link was lost is kept, and gone on with."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        overlay_hold.private(folder)

    def path(self, digest: str, name: str) -> str:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef") or os.path.basename(name) != name:
            raise Refused("Not the hash and name of a wheel: {} {}".format(digest, name), kind="usage")
        return os.path.join(self.folder, digest, name)

    def begin(self, digest: str, name: str, size: int) -> int:
        """How many bytes of it are here: all of them, if it is whole."""
        self.digest, self.size, self.whole = digest, size, self.path(digest, name)
        overlay_hold.private(os.path.dirname(self.whole))
        self.part = self.whole + ".part"
        if os.path.exists(self.whole):
            if os.path.getsize(self.whole) == size and _sha256(self.whole) == digest:
                return size
            os.unlink(self.whole)  # damaged on this disk
        have = os.path.getsize(self.part) if os.path.exists(self.part) else 0
        if have >= size:
            os.unlink(self.part)
            have = 0
        _room_for(self.folder, size - have, "sending {}".format(name))
        return have

    def add(self, data: str) -> bool:
        """One more piece; whether it was the last."""
        try:
            piece = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise Refused("A piece of the wheel is not base64.", kind="host_program_failed") from None
        with open(self.part, "ab") as file:
            file.write(piece)
            have = file.tell()
            if have < self.size:
                return False
            file.flush()
            os.fsync(file.fileno())
        if have > self.size or _sha256(self.part) != self.digest:
            os.unlink(self.part)
            raise Refused(
                "{} did not arrive as it was sent: its SHA-256 differs.".format(os.path.basename(self.whole)),
                "Run it again; what had arrived has been removed.",
            )
        os.rename(self.part, self.whole)
        overlay_hold.sync(os.path.dirname(self.whole))
        return True


class Layer:
    """One wheel, unpacked. It is looked at again each time it is used: nobody may have changed it meanwhile."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.hashes = {}  # type: Dict[str, str]

    def lay(self, wheel: str, message: Mapping[str, Any]) -> Json:
        changed = self.changed()
        if changed or not self.hashes:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.hashes = unpack(wheel, self.folder)
        env = dict(message.get("env") or {})
        after = env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = self.folder + (os.pathsep + after if after else "")
        module = top_level(self.hashes, message["package"])
        seen = where_from(message["python"], env, message["package"], module, self.folder)
        return {
            "folder": self.folder,
            "pythonpath": env["PYTHONPATH"],
            "files": len(self.hashes),
            "changed": changed,
            "version": seen["version"],
            "origin": seen["origin"],
        }

    def changed(self) -> List[str]:
        """Files that are not as they were unpacked; at most five."""
        differ = (name for name, digest in self.hashes.items() if _sha256(os.path.join(self.folder, name)) != digest)
        return [name for name, _ in zip(differ, range(5))]


def unpack(wheel: str, folder: str) -> Dict[str, str]:
    """{path: sha256} of what was written. What a wheel would put beside site-packages (scripts, data) is left out."""
    hashes = {}  # type: Dict[str, str]
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = list(_members(archive))
            _room_for(os.path.dirname(folder), sum(entry.file_size for entry, _ in members), "unpacking it")
            for entry, path in members:
                hashes[path] = _extract(archive, entry, os.path.join(folder, path))
    except zipfile.BadZipFile as error:
        raise Refused("{} is not a readable wheel: {}.".format(os.path.basename(wheel), error)) from None
    return hashes


def _members(archive: zipfile.ZipFile) -> Iterator[Tuple[zipfile.ZipInfo, str]]:
    for entry in archive.infolist():
        parts = entry.filename.split("/")
        if entry.is_dir():
            continue
        if os.path.isabs(entry.filename) or ".." in parts or "\\" in entry.filename:
            raise Refused("The wheel has a file that would lie elsewhere: {!r}.".format(entry.filename))
        if parts[0].endswith(".data"):
            if parts[1] not in ("purelib", "platlib"):
                continue
            parts = parts[2:]
        yield entry, "/".join(parts)


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str) -> str:
    digest = hashlib.sha256()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with archive.open(entry) as source, open(path, "wb") as file:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
            file.write(block)
    if (entry.external_attr >> 16) & 0o111:  # compilers that wheels carry are started
        os.chmod(path, 0o755)
    return digest.hexdigest()


def where_from(python: str, env: Mapping[str, Optional[str]], package: str, module: str, folder: str) -> Json:
    """{"version", "origin"} of what this interpreter imports; refused where that is not in `folder`."""
    seen = ask(python, env, _SEEN, [package, module])
    if not _inside(seen["origin"], folder):
        raise Refused(
            "{} does not import {} from the folder that PYTHONPATH names first, but from {}.".format(
                python, module, seen["origin"] or "nowhere"
            ),
            "Take -I and -E out of the command; look for a .pth file or sitecustomize that changes the order.",
        )
    return seen


def top_level(paths: Mapping[str, str], package: str) -> str:
    """The name that the package is imported by: its own, or the first one that the wheel has."""
    tops = sorted({path.split("/")[0] for path in paths if ".dist-info/" not in path})
    names = [top[:-3] if top.endswith(".py") else top.split(".")[0] for top in tops]
    own = package.replace("-", "_").replace(".", "_").lower()
    return next((name for name in names if name.lower() == own), names[0] if names else own)


def ask(python: str, env: Mapping[str, Optional[str]], script: str, words: List[str]) -> Json:
    """What an interpreter prints, as the server's would be started."""
    given = dict(os.environ)
    for name, value in env.items():
        given.pop(name, None)
        if value is not None:
            given[name] = value
    said, why = _output([os.path.expanduser(python), "-B", "-c", script, *words], given)
    try:
        return dict(json.loads(said.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        what = "The interpreter {} did not say what it is.".format(python)
        next = "Check `python` in the host's inventory entry, and the plan's command."
        raise Refused(what, next, why.splitlines()[-5:]) from None


def _output(argv: List[str], env: Mapping[str, str]) -> Tuple[str, str]:
    """(standard output, standard error or why there is none)"""
    try:
        done = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return _proc.text(done.stdout), _proc.text(done.stderr)


def _inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _room_for(folder: str, size: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise Refused(
            "{} MiB are free in {}; {} takes {} MiB.".format(free >> 20, folder, what, size >> 20),
            "Make room there, or set XDG_CACHE_HOME in the host's `env` to a folder on another disk.",
        )
