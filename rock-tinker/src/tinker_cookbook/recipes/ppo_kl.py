"""PPO with a KL penalty against the base model (--kl-beta, default 0.05); else the same as ppo.

    python -m tinker_cookbook.recipes.ppo_kl --config TASK/config --run-dir RUN [options]

`run.sh ppo-kl` of the quick start calls this. The loop is `tinker_cookbook.swe.loop`; the three training recipes differ
in its options only.
"""

from __future__ import annotations

import sys

from tinker_cookbook.swe.training_recipe import ppo_kl_main

if __name__ == "__main__":
    sys.exit(ppo_kl_main(None))
