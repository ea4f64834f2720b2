"""What a run leaves behind: columns, metrics over them, figures and reports."""
