"""The embedded host's SSH server: `python -m diag.lab.sshd FOLDER`. Loopback only, public keys only.

Commands run through `/bin/sh -c`, as a real sshd runs them through the login shell, in a clean environment whose
HOME is the lab's. SFTP and forwarding to loopback ports work. When a client goes away its commands see end of
file on their standard input, and nothing else: what they then do is their own business, as on a real host.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh

from diag.lab.layout import Lab

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Server(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in LOOPBACK


class _Processes:
    """Runs one client command; `environment` is what it starts with."""

    def __init__(self, environment: dict[str, str], cwd: Path) -> None:
        self._environment, self._cwd = environment, cwd

    async def handle(self, process: Any) -> None:
        argv = ["/bin/sh"] if process.command is None else ["/bin/sh", "-c", process.command]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._cwd,
            env={**self._environment, **{k: v for k, v in process.env.items() if k.startswith(("LANG", "LC_"))}},
            start_new_session=True,
        )
        feed = asyncio.create_task(_feed(process.stdin, child.stdin))
        try:
            await asyncio.gather(_drain(child.stdout, process.stdout), _drain(child.stderr, process.stderr))
            status = await child.wait()
        finally:
            feed.cancel()
            if child.stdin is not None:
                child.stdin.close()
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)


async def _feed(source: Any, sink: Any) -> None:
    """Client to command; end of file, or a lost connection, closes the command's standard input."""
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except (asyncssh.Error, OSError):
        pass  # the connection or the command is gone: both end here
    finally:
        sink.close()


async def _drain(source: Any, sink: Any) -> None:
    """Command to client. A client that is gone must not stop the command: its output is read and dropped."""
    gone = False
    while data := await source.read(1 << 16):
        if gone:
            continue
        try:
            sink.write(data)
            await sink.drain()
        except (asyncssh.Error, OSError):
            gone = True


def session_environment(lab: Lab) -> dict[str, str]:
    """What a login gives: none of diag's own variables, and not the environment it was installed in."""
    user = pwd.getpwuid(os.getuid()).pw_name
    own = str(Path(sys.prefix) / "bin")
    path = [entry for entry in os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep) if entry != own]
    return {"HOME": str(lab.home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "PATH": os.pathsep.join(path)}


async def serve(lab: Lab) -> None:
    processes = _Processes(session_environment(lab), lab.home)
    server = await asyncssh.create_server(
        _Server,
        "127.0.0.1",
        lab.read_state().get("port", 0),
        server_host_keys=[str(lab.host_key)],
        authorized_client_keys=str(lab.user_key.with_suffix(".pub")),
        password_auth=False,
        kbdint_auth=False,
        gss_host=None,
        agent_forwarding=False,
        x11_forwarding=False,
        process_factory=processes.handle,
        sftp_factory=True,
        encoding=None,
        keepalive_interval=15,
    )
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    port = server.sockets[0].getsockname()[1]
    lab.write_state(sshd_pid=os.getpid(), port=port)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stop.wait()
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Lab(Path(sys.argv[1]))))
