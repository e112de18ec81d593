"""All cases: importing this fills the table."""

from tests.programs import algebra, control, elementwise, reductions, shapes
from tests.programs.table import CASES

__all__ = ["CASES", "algebra", "control", "elementwise", "reductions", "shapes"]
