"""The metrics that there are, by key, and how one is added."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from corrigenda import Fact
from corrigenda.text.names import did_you_mean
from eval.measurement import Measurement
from eval.metrics.metric import Compute, Measured, Metric


class Registry(Mapping[str, Metric]):
    """Metrics by key, in the order of tables. It is read anew at each use: a metric that is added later is found."""

    def __init__(self, metrics: Iterable[Metric] = ()) -> None:
        self._metrics: dict[str, Metric] = {}
        for one in metrics:
            self.register(one)

    def __getitem__(self, key: str) -> Metric:
        try:
            return self._metrics[key]
        except KeyError:
            raise KeyError(self._unknown(key)) from None

    def __contains__(self, key: object) -> bool:
        return key in self._metrics  # Mapping's own asks __getitem__, which looks for near names

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def register(self, metric: Metric) -> Metric:
        """Adds a metric at the end; gives it back.

        Raises:
            ValueError: there is one with this key.
        """
        if metric.key in self._metrics:
            raise ValueError(f"there is a metric {metric.key!r} already; take another key, or remove that one first")
        self._metrics[metric.key] = metric
        return metric

    def remove(self, key: str) -> None:
        """Takes a metric out again.

        Raises:
            KeyError: there is none with this key.
        """
        del self._metrics[self[key].key]

    @property
    def modules(self) -> dict[str, str]:
        """By key, the module that declares each metric."""
        return {key: str(getattr(metric.compute, "__module__", "")) for key, metric in self.items()}

    def find(self, key: str) -> Metric | None:
        """The metric with a key, those of groups of probes included; None where there is none."""
        if key in self._metrics:
            return self._metrics[key]
        for one in self._metrics.values():
            if one.groups is not None and (group := one.groups.group(key)) is not None:
                return one.of_group(group)
        return None

    def named(self, key: str) -> Metric:
        """As `find`, for a key that has to be one.

        Raises:
            ValueError: there is none; the message names those that are spelt alike.
        """
        if (found := self.find(key)) is None:
            raise ValueError(self._unknown(key))
        return found

    def of_groups(self, keys: Iterable[str]) -> list[Metric]:
        """The metrics of groups of probes among some keys, each once, in the order of their keys."""
        others = sorted(set(keys) - set(self._metrics))
        return [one for one in map(self.find, others) if one is not None]

    def kinds(self, *measured: Measured, without: Collection[str] = ()) -> frozenset[str]:
        """The kinds of prompts on which some metric needs one of these measured.

        Args:
            measured: what is measured.
            without: kinds that are left out.
        """
        needs = (need for one in self._metrics.values() for need in one.needs)
        return frozenset(kind for need in needs if need.measured in measured for kind in need.kinds).difference(without)

    def judge(self, fact: Fact, measurement: Measurement) -> None:
        """Notes in the records what follows from them by the metrics' rules."""
        for judge in dict.fromkeys(one.judge for one in self._metrics.values() if one.judge is not None):
            judge(fact, measurement)

    def missed(self, values: Mapping[str, float]) -> dict[str, float]:
        """Of a fact's values those that an edit is for, as not brought about: 0."""
        known = {key: self.find(key) for key in values}
        return {key: 0.0 for key, metric in known.items() if metric is not None and metric.edit_should == "change"}

    def computed(self, before: Measurement | None, after: Measurement) -> dict[str, float]:
        """By key a fact's values; one that its prompts do not allow is absent."""
        wanted = list(self._metrics.values())
        for one in self._metrics.values():
            if one.groups is not None:
                names = dict.fromkeys(record.group for record in after.probes(one.groups.kind) if record.group)
                own = (one.of_group(name) for name in names)
                wanted += [each for each in own if each.key not in self._metrics]  # a group called "same_subject"
        values = ((one.key, one.compute(before, after)) for one in wanted)
        return {key: float(value) for key, value in values if value is not None}

    def _unknown(self, key: str) -> str:
        hint = did_you_mean(key, self._metrics, most=3) or f"the metrics are {', '.join(self._metrics)}"
        return f"there is no metric {key!r}; {hint}"


def metric_in(registry: Registry) -> Callable[..., Callable[[Compute], Metric]]:
    """The decorator that makes a function the `compute` of a metric, and registers it."""

    def metric(key: str, **declared: Any) -> Callable[[Compute], Metric]:
        """Declares a metric by what computes it.

        Args:
            key: its name in every file, table and API.
            declared: the other fields of `Metric`.
        """
        return lambda compute: registry.register(Metric(key=key, compute=compute, **declared))

    return metric
