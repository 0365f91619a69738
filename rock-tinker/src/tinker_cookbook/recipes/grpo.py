"""GRPO: several rollouts of one task a step, each one's advantage is its return minus the group's mean.

    python -m tinker_cookbook.recipes.grpo --config TASK/config --run-dir RUN [options]

`run.sh grpo` of the quick start calls this. The loop is `tinker_cookbook.swe.loop`; the three training recipes differ
in its options only.
"""

from __future__ import annotations

import sys

from tinker_cookbook.swe.training_recipe import grpo_main

if __name__ == "__main__":
    sys.exit(grpo_main(None))
