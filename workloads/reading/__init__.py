"""The machinery under `workloads.formats`: bounded lines, strict values, columns, and the list of dialects."""
