"""The statistics of the search: arrays in, decisions out. No I/O, no clock, seeded ties.

    rows       hypotheses as rows: which configurations each calls active, in three-valued logic
    rates      unknown rates as a grid of nuisances theta = (p_boot, garbled share, false alarms) with Beta priors
    posterior  trials x rows -> probability of each hypothesis, rates integrated out
    gain       information per minute of a trial, for every candidate at once
    starts     which configurations are likely to start, learned from those that did not
    stopping   gate, stop, confirmation and hold-outs: their rules and their exact error rates
    numbers    what rule over numbers separates good from bad, and the fewest trials that tell
    batch      the next trials for several hosts at once
    commits    the same engine with commits as columns and "is an ancestor" as rows

The model, its priors and where they come from: docs/model.md.
"""
