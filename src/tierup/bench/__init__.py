"""Measures Tierup beside other libraries: each in a process of its own, one awake at a time, on the same inputs.

`contenders.py` is the table of who can be measured, `worker.py` what runs in a contender's process, `process.py` its
handle here. `rounds.py` measures settled calls, `replay.py` a traffic of shapes in cold processes; both give a record
(`record.py`) that the command line prints, writes and plots.
"""
