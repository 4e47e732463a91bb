"""Who answers there: the smallest probe."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
from typing import Any, Dict, Mapping


def run(args: Mapping[str, Any], talk: object = None) -> Dict[str, Any]:
    """{} -> {python, version, hostname, user}"""
    try:
        user = getpass.getuser()
    except Exception:  # an account that the password file does not know
        user = str(os.geteuid())
    return {
        "python": sys.executable,
        "version": platform.python_version(),
        "hostname": socket.gethostname(),
        "user": user,
    }
