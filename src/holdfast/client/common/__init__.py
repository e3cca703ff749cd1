"""What both twins need, beside what is in `holding`: configuration, headers, the background, the decorator."""
