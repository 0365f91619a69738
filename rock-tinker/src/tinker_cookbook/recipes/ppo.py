"""PPO on single rollouts of a SWE task: reward against a fixed baseline, clipped ratio, no KL term.

    python -m tinker_cookbook.recipes.ppo --config TASK/config --run-dir RUN [options]

`run.sh ppo` of the quick start calls this. The loop is `tinker_cookbook.swe.loop`; the three training recipes differ
in its options only.
"""

from __future__ import annotations

import sys

from tinker_cookbook.swe.training_recipe import ppo_main

if __name__ == "__main__":
    sys.exit(ppo_main(None))
