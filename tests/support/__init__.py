"""What black-box tests share: a server process, a plain HTTP client, checks. Standard library only."""
