"""Which version, or which commit, broke it? `diag bisect --over versions | commits`.

    axis       the places that can be tried and which come before which: a row of releases, a graph of commits. Pure
    search     which place is the first bad one: `decision.Search` over an axis. Pure
    releases   the released versions between two, from the package index
    history    what a repository says about the commits between two, and what is refused
    layers     what is put before the host's environment for a trial: a wheel, a tree of a commit
    bench      a trial of one place: a server on a host with a layer before it, or a command in a tree
    session    one run, checked and ready; a new one, or one to go on with
    page       what a person and a program are told at the end

How it works and what it promises: docs/versions-and-commits.md.
"""
