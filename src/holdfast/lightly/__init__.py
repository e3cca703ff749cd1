"""Minimal HTTP client for programs that must start fast: `rlock` and its variants, and the guard. Stdlib only."""
