"""What every id that diag prints means, why it matters and what to do: `diag explain ID`.

entry          the shape of one explanation
faults         faults of the catalogue, one for each fix
findings       what `diag probe host` reports about a host
bisections     how a bisection can end
playbooks      how a playbook can end, and what becomes of its changes
texts          what a text of the server can be judged to be
probing        false leads, signs, and the rules that speak against a text
errors         kinds of errors, by their exit code
index          all of them, and the search for one
"""
