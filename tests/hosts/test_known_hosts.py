"""known_hosts as OpenSSH reads it, or a refusal that says why."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.hosts.known_hosts import entries_for, fingerprint, host_pattern_name, judge, known_types

FILE = Path("known_hosts")
KEY, OTHER = b"\0\0\0\x0bssh-ed25519-one", b"\0\0\0\x0bssh-ed25519-two"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def verdict(text: str, name: str = "box", key: bytes = KEY) -> str:
    return judge(key, entries_for(name, FILE, text)).verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"box ssh-ed25519 {b64(KEY)}", "known"),
        (f"BOX,10.0.0.1 ssh-ed25519 {b64(KEY)} a comment", "known"),
        (f"# comment\n\n  b?x ssh-ed25519 {b64(KEY)}", "known"),
        (f"*,!box ssh-ed25519 {b64(KEY)}", "unknown"),
        (f"!box,* ssh-ed25519 {b64(KEY)}", "unknown"),
        (f"boxer ssh-ed25519 {b64(KEY)}", "unknown"),
        (f"[box]:22 ssh-ed25519 {b64(KEY)}", "unknown"),
        (f"box ssh-ed25519 {b64(OTHER)}", "changed"),
        (f"* ssh-ed25519 {b64(OTHER)}", "changed"),
        (f"box ssh-ed25519 {b64(OTHER)}\nbox ssh-ed25519 {b64(KEY)}", "known"),
        (f"box ssh-ed25519 {b64(KEY)}\n@revoked * ssh-ed25519 {b64(KEY)}", "revoked"),
        (f"@revoked other ssh-ed25519 {b64(KEY)}\nbox ssh-ed25519 {b64(KEY)}", "known"),
        (f"@revoked box ssh-ed25519 {b64(OTHER)}\nbox ssh-ed25519 {b64(KEY)}", "known"),
        (f"@revoked box ssh-ed25519 damaged!\nbox ssh-ed25519 {b64(KEY)}", "revoked"),
        (f"@cert-authority *ox ssh-ed25519 {b64(KEY)}", "unknown"),
        (f"@new-marker box ssh-ed25519 {b64(KEY)}", "unknown"),
        ("box ssh-ed25519 damaged!", "unknown"),
        ("box", "unknown"),
        ("@revoked", "unknown"),
        ("", "unknown"),
    ],
)
def test_verdict(text: str, expected: str) -> None:
    assert verdict(text) == expected


@pytest.mark.parametrize(
    "text",
    [f"@cert-authority b* ssh-ed25519 {b64(KEY)}", "box ssh-ed25519 damaged!", f"@odd box ssh-ed25519 {b64(KEY)}"],
)
def test_a_line_that_cannot_be_evaluated_is_named(text: str) -> None:
    (entry,) = judge(KEY, entries_for("box", FILE, f"# first\n{text}\n")).entries
    assert entry.where == "known_hosts:2"
    assert entry.why


def test_port_and_brackets() -> None:
    assert host_pattern_name("Box", 22) == "box"
    assert host_pattern_name("::1", 2222) == "[::1]:2222"
    line = f"[box]:2222 ssh-ed25519 {b64(KEY)}"
    assert verdict(line, host_pattern_name("box", 2222)) == "known"
    # A bracket is not a character class here.
    assert verdict(line, "b:2222") == "unknown"
    assert verdict(f"[*]:2222 ssh-ed25519 {b64(KEY)}", "[box]:2222") == "known"


def test_known_types_come_in_the_order_of_the_file() -> None:
    text = f"box ecdsa-sha2-nistp256 {b64(OTHER)}\nbox ssh-ed25519 {b64(KEY)}\n@revoked box ssh-rsa {b64(KEY)}"
    assert known_types(entries_for("box", FILE, text)) == ["ecdsa-sha2-nistp256", "ssh-ed25519"]


def test_hashed_names_and_fingerprint_as_ssh_keygen_writes_them(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    kind, blob, _ = (tmp_path / "key.pub").read_text().split()
    path = tmp_path / "known_hosts"
    path.write_text(f"[10.0.0.7]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", path], check=True, capture_output=True)
    text = path.read_text()
    assert text.startswith("|1|")
    key = base64.b64decode(blob)
    assert verdict(text, "[10.0.0.7]:2222", key) == "known"
    assert verdict(text, "10.0.0.7", key) == "unknown"
    printed = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "key.pub"], check=True, capture_output=True, text=True
    )
    assert fingerprint(key) == printed.stdout.split()[1]


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_a_key_known_by_accident(text: str) -> None:
    assert verdict(text) != "known"
