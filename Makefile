# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo    set up, fetch, and run the story on the embedded host
#   make test    set up and run the tests
# Others: make check (format, lint, types), make clean.

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
READY = $(VENV)/.ready

# Many tests start servers, and some look at all that run. Root gives each worker processes of its own to look at; anyone
# else runs those tests one after the other (conftest.py).
ALONE = unshare --pid --fork --mount-proc --kill-child --
APART = --dist load --no-loadscope-reorder --tx '3*popen//python=$(ALONE) $(abspath $(VENV))/bin/python'
WORKERS = $(if $(shell $(ALONE) echo yes 2>/dev/null),$(APART),-n 2)

.PHONY: demo test check sshd chromium slurm clean help

help:
	@sed -n 's/^#   //p' Makefile

# torch comes first and from the constraints, so that nothing else pulls in a newer and much larger one.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "diag needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt -e '.[lab,slurm,dev]'
	@touch $(READY)

demo: $(READY)
	$(VENV)/bin/python -m diag.lab.demo

test: $(READY) sshd chromium slurm check
	$(VENV)/bin/python -m pytest $(WORKERS)

check: $(READY)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

# Tests talk to a real OpenSSH server. Root on Debian gets it here; anyone else is told by the tests what to install.
sshd:
	@if [ ! -x /usr/sbin/sshd ] && [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openssh-server >/dev/null; fi

# The HTML report is looked at in a real browser; without one those tests are skipped, and say so.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-dejavu-core >/dev/null; fi

# Jobs run on a real Slurm that the tests start themselves (tests/slurm/cluster.py); without one they are skipped.
slurm:
	@if [ ! -x /usr/sbin/slurmctld ] && [ "$$(id -u)" = 0 ] && [ -e /etc/debian_version ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    slurmctld slurmd slurm-client munge >/dev/null; fi

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
