"""What is measured, for Prometheus and for the page of numbers. Nothing is kept here for a name or a principal."""
