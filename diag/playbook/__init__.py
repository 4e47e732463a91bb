"""Playbooks: a diagnosis written down, which anybody can read, run on another host, go on with, and trust to undo.

schema, load   the format, and every fault of a file at once
kind, kinds    what a step can do: one function each, in one registry (steps/)
stage          what such a function is given
course         the way of one host through a playbook
run            a whole run: hosts, journal, verdict; a new one, or one to go on with
past           what an earlier session of a run has written down
undo           giving back what was changed, from the journal's record alone
foresee        what a run would change (`--dry-run`)
"""
