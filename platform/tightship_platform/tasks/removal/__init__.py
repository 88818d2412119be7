"""Removes runs with all that is known of them, because of their age or because somebody wants it; captures and hosts.

[Note: begun and finished]
Removing a run takes many small transactions. The first one writes its key down (`RemovedRun`), has its rows name no
file any more and ends its captures: from then on nothing more of it is taken. Files, samples and rows follow; the row
of the run is the last to go. Whoever dies in between has lost nothing: the worker finishes what was begun. A run that
lives is left alone.

[Note: what stays]
The run's key, for KEY_DAYS: what an agent delivers late, from a spool or of a process that runs after all, is refused,
and a file that an upload leaves behind is known to be nobody's. The record of who did it. And the run's device time, in
sums of each UTC day (`PastAccount`): the fleet's account of past days stays what it was. What went because of its age
keeps the names of workflow and team there; what somebody deleted does not.
"""
