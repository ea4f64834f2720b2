"""Makes a bundled trace anew: `python -m workloads.bundled chat-1k > workloads/bundled/chat-1k.csv.gz`."""

import sys

from workloads.bundled import rebuilt

sys.stdout.buffer.write(rebuilt(sys.argv[1]))
