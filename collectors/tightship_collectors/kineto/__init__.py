"""On-demand captures of jobs that know nothing of us, over the protocol between Kineto and its daemon.

`service` speaks with the jobs, `recording` carries one capture from its lease to complete files, `upload` brings the
files to the server, and `executor` ties them to the server's captures.
"""
