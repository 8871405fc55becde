"""Groups of probes: notes in the records which group each probe belongs to."""

from corrigenda import Fact
from eval.measurement import Measurement


def note_groups(fact: Fact, measurement: Measurement) -> None:
    """Notes the probes' groups in their records, which stand in the order of the fact's probes."""
    for kind, probes in (("locality", fact.locality), ("portability", fact.portability)):
        for record, probe in zip(measurement.probes(kind), probes, strict=False):
            record.group = probe.group or None
