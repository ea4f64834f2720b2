"""What arrives: request traces from files and generators. A leaf: imports nothing of ours."""
