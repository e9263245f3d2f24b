"""What shipped recipes reach over several seeds, beside the bar that each states; exits with 1 if one is missed.

`python -m benchmarks.recipes [NAMES] [--seeds 3]`: a line a recipe, with the test part's number for each seed from 0
on, and the seconds of a run. Without names, all recipes that state a bar, by a comment:
`# reaches: test accuracy 0.97`, or `# reaches: test rmse at most 0.5`.
"""

import argparse
import pathlib
import re
import sys
import tempfile
import time
from typing import NamedTuple

import mxkit
from mxkit.recipe.reading import RECIPE_FOLDERS, recipe_names

BAR = re.compile(r"^# reaches: test (\w+) (at most )?(\d+\.\d+)$", re.MULTILINE)


class Bar(NamedTuple):
    """What a metric has to reach over the test part: at least, or at most."""

    metric: str
    value: float
    at_most: bool = False

    def reached(self, scores):
        """Whether every score is on the right side."""
        return max(scores) <= self.value if self.at_most else min(scores) >= self.value


def text_of(name):
    """What is written in a shipped recipe, comments too."""
    found = [folder / f"{name}.yaml" for folder in RECIPE_FOLDERS]
    return next(path for path in found if path.is_file()).read_text(encoding="utf-8")


def stated_bar(name):
    """The bar that a shipped recipe states, or None."""
    found = BAR.search(text_of(name))
    return found and Bar(found[1], float(found[3]), bool(found[2]))


def scores_of(name, metric, seeds):
    """The metric over the test part for each seed, and the seconds that a run took."""
    begun, scores = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            run = mxkit.run_recipe(name, overrides=[f"seed={seed}"], output=pathlib.Path(folder), progress=False)
            scores.append(run.scores[metric])
    return scores, (time.perf_counter() - begun) / seeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="shipped recipes that state a bar; none are all")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="0 to N - 1")
    arguments = parser.parse_args()
    bars = {name: stated_bar(name) for name in recipe_names()}
    wrong = [name for name in arguments.names if not bars.get(name)]
    if wrong or arguments.seeds < 1:
        parser.error(f"of no recipe with a bar: {', '.join(wrong)}" if wrong else "--seeds: at least 1")
    below = []
    print(f"{'recipe':22} {'test part, seeds from 0':32} {'bar':>7}  reached")
    for name in arguments.names or [name for name, bar in bars.items() if bar]:
        scores, seconds = scores_of(name, bars[name].metric, arguments.seeds)
        reached = bars[name].reached(scores)
        below += [name] * (not reached)
        numbers = " ".join(f"{score:.4g}" for score in scores)
        print(f"{name:22} {numbers:32} {bars[name].value:7g}  {'yes' if reached else 'NO'}  ({seconds:.0f} s a run)")
        sys.stdout.flush()
    sys.exit(f"missed: {', '.join(below)}" if below else 0)


if __name__ == "__main__":
    main()
