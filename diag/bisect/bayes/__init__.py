"""The parts of the search, each over the same `View` of the trials:

    model     hypotheses with their weights, and what the trials so far amount to
    pools     what can be tried, and what is likely to start
    checks    before a name is said: claims, hold-outs, and when the leader does not fit
    naming    verdicts

diag.bisect.bayesian puts them together; the arithmetic is in diag.bisect.engine.
"""
