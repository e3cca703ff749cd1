"""The API's description as documents, for programs and for people."""
