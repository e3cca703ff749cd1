"""What the parts found, as text for people and as the tables and pictures of the guide."""
