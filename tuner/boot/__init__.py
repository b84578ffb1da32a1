"""What the next boot brings, read from the files of a host: nothing here runs a program or writes.

`sysctl_d` says which value each kernel parameter will be given, by which line of which file; `appliers` which program
does it; `lines` how that program reads its files; `owners` who else writes kernel parameters.
"""
