"""Table 1: copying random objects, all seeds and scales of a row trained as one stacked model.

``command`` measures the table, ``choice`` compares settings that the paper leaves open,
``emd_study`` takes SA-EMD apart, and ``floor`` computes the error that no model can go below.
"""

from paper.table1.choice import Table1Choice, run_choice
from paper.table1.command import Table1, run_table1
from paper.table1.emd_study import Table1Emd, run_emd_study

__all__ = ["Table1", "Table1Choice", "Table1Emd", "run_choice", "run_emd_study", "run_table1"]
