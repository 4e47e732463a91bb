"""All runs so far in one SQLite file: an index of the journals, which stay the truth and can make it anew.

schema     the tables, and how an older file becomes a newer one
ingest     lines of a journal into rows
store      the file: opened, brought up to date, made anew, done without
runs       what is asked of it
"""
