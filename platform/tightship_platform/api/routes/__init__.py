"""One file of routes per subject. A route checks nothing by itself that the function behind it checks."""
