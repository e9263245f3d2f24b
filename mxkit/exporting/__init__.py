"""Ways out of mxkit: Gluon's symbol files."""
