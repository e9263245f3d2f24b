"""The ranges of a sweep, from `--set KEY=RANGE` of `mxkit sweep`."""

from itertools import accumulate
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.errors import RecipeError
from mxkit.recipe.reading import load_recipe
from mxkit.recipe.schema import Recipe, differences

FORMS = (
    "0.1..0.5 (a number between), log:1e-4..1e-1 (the same, evenly over orders of magnitude), 16..256 (a whole number; "
    "log:16..256), sgd,adam (one of these). Quote a value that contains a comma: 'devices=\"gpu:0,2\"'"
)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")
# `../photos` is a path
_RANGE_LIKE = re.compile(r"log:|[-+]?[\d.]+[^/]*\.\.")


class Range(NamedTuple):
    """The values that a sweep tries for one key.

    Attributes:
        key: Dotted path in the recipe.
        text: The range as the user wrote it.
        low: Lowest number; None for choices.
        high: Highest number; None for choices.
        log: Whether numbers are drawn evenly over orders of magnitude.
        choices: Values as YAML; empty for numbers.
    """

    key: str
    text: str
    low: Any = None
    high: Any = None
    log: bool = False
    choices: Tuple[str, ...] = ()

    @property
    def tried(self) -> Tuple[str, ...]:
        """Both ends, or all choices, as YAML."""
        return self.choices or (repr(self.low), repr(self.high))

    def suggest(self, trial: Any) -> str:
        """The value of an Optuna trial as YAML; Optuna chooses it unless the trial has one."""
        if self.choices:
            return str(trial.suggest_categorical(self.key, self.choices))
        suggest = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return repr(suggest(self.key, self.low, self.high, log=self.log))


def read_ranges(settings: Sequence[str]) -> Tuple[List[str], List[Range]]:
    """Split the settings of a sweep into those with one value and those with a range.

    Raises:
        RecipeError: A range has a wrong form, a key has two ranges or is `threads`, or there is no range.

    >>> read_ranges(["epochs=2", "optimizer.name=sgd,adam", "optimizer.learning_rate=log:1e-4..1e-1"])[1][0].choices
    ('sgd', 'adam')
    """
    fixed: List[str] = []
    ranges: Dict[str, Range] = {}
    for setting in settings:
        given = _read(setting)
        if given is None:
            fixed.append(setting)
        elif given.key == "threads":
            raise RecipeError(
                f"--set {setting!r}: one process has one number of threads. mxkit profile times 1, 2, 4 ... of them"
            )
        elif ranges.setdefault(given.key, given) is not given:
            raise RecipeError(f"--set {setting!r}: {given.key} has a range already; give it once")
    if not ranges:
        raise RecipeError(f"nothing to try: no --set has a range; received {list(settings)}; expected KEY={FORMS}")
    return fixed, list(ranges.values())


def _read(setting: str) -> Optional[Range]:
    key, text = (part.strip() for part in setting.partition("=")[::2])
    match, choices = _RANGE.fullmatch(text), _split(text)
    given, wrong = Range(key, text, choices=tuple(choices)), ""
    if match:
        log, ends = bool(match[1]), (match[2], match[3])
        whole = all(re.fullmatch(r"[-+]?\d+", end) for end in ends)
        low, high = (int(end) if whole else float(end) for end in ends)
        given = Range(key, text, low, high, log)
        if low >= high:
            wrong = "the first number must be below the second"
        elif log and low <= 0:
            wrong = "log: needs numbers above 0"
    elif _RANGE_LIKE.match(text):
        wrong = "not a range"
    elif len(choices) < 2:
        return None
    elif "" in choices or len(set(choices)) < len(choices):
        wrong = "a choice is empty or given twice"
    if wrong:
        raise RecipeError(f"--set {setting!r}: {key}: {wrong}; received {text!r}; expected {FORMS}")
    return given


def _split(text: str) -> List[str]:
    """Split at commas outside brackets and quotes.

    >>> _split("[16, 8],[32]"), _split("'a,b'"), _split("don't, do")
    (['[16, 8]', '[32]'], ["'a,b'"], ["don't", 'do'])
    """
    # a quote opens a text only where a value begins
    parts = re.findall(r"""(?<![\w.])"[^"]*"|(?<![\w.])'[^']*'|.""", text, re.DOTALL)
    depths = accumulate((one in "[{") - (one in "]}") if len(one) == 1 else 0 for one in parts)
    split = "".join("\0" if one == "," and not depth else one for one, depth in zip(parts, depths))
    return [one.strip() for one in split.split("\0")]


def check_ranges(recipe: str, fixed: Sequence[str], ranges: Sequence[Range]) -> Recipe:
    """Load the recipe with each end of each range.

    Args:
        recipe: As for `load_recipe`.
        fixed: Settings with one value.
        ranges: The ranges.

    Returns:
        The recipe with the first value of each range.

    Raises:
        RecipeError: The recipe refuses a key or an end of a range; or names that are tried for a section would replace
            its other keys.
    """
    first = [f"{one.key}={one.tried[0]}" for one in ranges]
    loaded = []
    for number, one in enumerate(ranges):
        for value in one.tried[1:] if number else one.tried:
            chosen = [*first[:number], f"{one.key}={value}", *first[number + 1 :]]
            try:
                loaded.append(load_recipe(recipe, [*fixed, *chosen]))
            except RecipeError as error:
                raise RecipeError(
                    f"{error}\n  tried for --set {f'{one.key}={one.text}'!r}; a range is {FORMS}"
                ) from error
            others = [*fixed, *chosen[:number], *chosen[number + 1 :]]
            if one.choices and re.match("(?!null$)[A-Za-z]", value):
                _refuse_lost_keys(one, value, recipe, others, loaded[-1])
    return loaded[0]


def _refuse_lost_keys(tried: Range, value: str, recipe: str, others: Sequence[str], after: Recipe) -> None:
    """Refuse to lose keys of a section: `optimizer=adam` means `{name: adam}`, without the recipe's learning rate."""
    try:
        before = load_recipe(recipe, others)
    except RecipeError:  # it has no such section, and needs one
        return
    start = f"{tried.key}."
    lost = [one for one in differences(before, after) if one.startswith(start) and not one.startswith(f"{start}name:")]
    if lost:
        sections = ",".join(f"{{name: {one}}}" for one in tried.choices)
        raise RecipeError(
            f"--set {f'{tried.key}={tried.text}'!r}: {value} replaces the whole section: {'; '.join(lost)}. To keep "
            f"these, write {start}name={tried.text}; to do without them, {tried.key}={sections!r}"
        )
