"""What both twins need beside that: configuration, headers, the background, the decorator."""
