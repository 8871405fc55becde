"""Readers for the public knowledge-editing formats: one call, `read_facts`, gives a checked `FactSet`."""

from corrigenda.data.factset import FactSet
from corrigenda.data.plain import write_facts
from corrigenda.data.read import read_facts, read_part
from corrigenda.data.schemas import SCHEMAS
from corrigenda.errors import RecordError

__all__ = ["SCHEMAS", "FactSet", "RecordError", "read_facts", "read_part", "write_facts"]
