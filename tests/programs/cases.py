"""All cases: importing this fills the table."""

from tests.programs import elementwise as elementwise
from tests.programs import shapes as shapes
from tests.programs import reductions as reductions
from tests.programs import algebra as algebra
from tests.programs import control as control
