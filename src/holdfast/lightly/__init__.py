"""What a program that must start at once may import: `rlock` and its kin, and the guard. The standard library alone."""
