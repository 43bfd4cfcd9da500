"""``python -m mha_native_bench``: the same as ``python -m mha_native bench``."""

import sys

from mha_native_bench.command_line import main

sys.exit(main())
