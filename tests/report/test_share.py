"""What may be shown to strangers: no planted secret survives, and a name has one pseudonym everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from diag.hosts.inventory import Host
from diag.report import share
from diag.report.share import Share, of_hosts

KEY = b"k" * 32
PLANTED = [
    "sk-proj-abcdefghijklmnop1234",
    "hf_AbCdEfGhIjKlMnOpQrStUv",
    "ghp_abcdefghijklmnopqrstuvwxyz123456",
    "github_pat_11ABCDEFG0abcdefghij_klmnop",
    "glpat-abcdefghij_klmnopqrst",
    "xoxb-1234567890-abcdefghijkl",
    "nvapi-abcdefghijklmnopqrstuvwxyz",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
]
AROUND = ["{}", "key {} end", '"{}"', "--x={}", "a\n{}\nb", "({})", "https://h/?q={}&x=1", "\x1b[31m{}\x1b[0m"]


@pytest.mark.parametrize("secret", PLANTED)
@pytest.mark.parametrize("around", AROUND)
def test_a_secret_by_its_shape(secret: str, around: str) -> None:
    told = Share(KEY)
    shown = told.text(around.format(secret))
    assert secret not in shown
    assert "***" in shown
    assert told.counts["secret"] >= 1


@pytest.mark.parametrize(
    "line",
    [
        "--api-key {}",
        "--api-key={}",
        "OPENAI_API_KEY={}",
        "db_password: {}",
        'export HF_TOKEN="{}"',
        "Authorization: Bearer {}",
        '{{"client_secret": "{}"}}',
        "AWS_SECRET_ACCESS_KEY={}",
        "SERVICE_CREDENTIALS={}",
        "https://me:{}@host.example/x",
    ],
)
def test_a_secret_by_its_name(line: str) -> None:
    assert "pl4in-w0rds" not in Share(KEY).text(line.format("pl4in-w0rds"))


@given(st.text(st.characters(codec="utf-8"), min_size=4), st.text(), st.text())
def test_a_secret_by_its_value(secret: str, before: str, after: str) -> None:
    shown = Share(KEY, secret_values=[secret]).text(f"{before}{secret}{after}")
    assert secret not in shown.replace("***", "\0")


@pytest.mark.parametrize(
    "line",
    [
        "--speculative-num-draft-tokens 12345678",
        "max_total_num_tokens=1638400000",
        "--tokenizer-path /models/llama-70b",
        "the tokens per second are many",
        "http://127.0.0.1:30000/generate",
        "Python 3.12.3, driver 580.159.04, torch 2.9.1",
        "0.0.0.0:30000",
        "2026-11-29T17:23:01Z",
        "root",
        "sglang::scheduler_TP0",
    ],
)
def test_what_is_no_secret_stays_readable(line: str) -> None:
    assert Share(KEY, hosts=["gpu1"], users=["root", "ops"]).text(line) == line


def test_names_are_replaced_everywhere_by_the_same() -> None:
    text = "gpu7 (10.1.2.3) and GPU7x, /home/alice/x by alice; 10.1.2.3:80 fe80::1ff:fe23:4567:890a gpu7.cluster"
    told = Share(KEY, hosts=["gpu7", "gpu7.cluster"], users=["alice"])
    shown = told.text(text)
    assert not re.search(r"gpu7\b|alice|10\.1\.2|fe80", shown)
    assert "GPU7x" in shown
    address = re.search(r"\((address-[0-9a-f]{6})\)", shown)
    assert address is not None
    assert shown.count(address[1]) == 2
    user = re.search(r"/home/(user-[0-9a-f]{6})/x by (user-[0-9a-f]{6})", shown)
    assert user is not None
    assert user[1] == user[2]
    assert told.counts == {"host": 2, "user": 2, "address": 3}
    # A second run, another document, the same user: the same pseudonyms. Another user: others.
    assert Share(KEY, hosts=["gpu7", "gpu7.cluster"], users=["alice"]).text(text) == shown
    assert Share(b"other" * 8, hosts=["gpu7", "gpu7.cluster"], users=["alice"]).text(text) != shown
    assert told.text(shown) == shown


def test_a_whole_document_with_its_keys() -> None:
    host = Host(name="gpu7", address="10.1.2.3", user="alice", env={"HF_TOKEN": "canary-value", "HF_HOME": "/data"})
    facts: dict[str, Any] = {
        "hostname": "node-17",
        "user": "alice",
        "gpus": [{"uuid": "GPU-" + "1" * 8 + "-2222" * 3 + "-" + "3" * 12}],
    }
    document = {
        "host": "gpu7",
        "facts": facts,
        "servers": [{"user": "bob", "argv": ["x", "canary-value"]}],
        "n": [1, None],
    }
    told = of_hosts([document], [host], KEY)
    shown = told.document({"hosts": {"gpu7": document}})
    text = json.dumps(shown)
    assert not [word for word in ("gpu7", "10.1.2.3", "alice", "bob", "node-17", "canary", "11111111") if word in text]
    assert shown["hosts"][next(iter(shown["hosts"]))]["n"] == [1, None]
    assert "secret" in told.summary()
    assert Share(KEY).summary() == "nothing"


def test_the_key_is_made_once_and_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_STATE_DIR", str(tmp_path / "state"))
    first = share.key()
    assert share.key() == first
    assert len(first) == 32
    path = tmp_path / "state" / "share.key"
    assert path.stat().st_mode & 0o777 == 0o600


def test_values_of_env_are_wrapped_wherever_a_host_is_shown() -> None:
    host = Host(name="x", address="y", env={"HF_TOKEN": "canary"})
    for shown in (repr(host), str(host), host.model_dump_json(), f"{host.env}", repr(host.model_dump())):
        assert "canary" not in shown
    assert host.env["HF_TOKEN"] == SecretStr("canary")
