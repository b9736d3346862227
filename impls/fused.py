"""All heads in one product, by view and transpose."""

from .formula import attention
from .registry import every_score, register
from .rules import EVERY_RULE

fused = register(
    "fused", takes_mask=True, baseline=True, compiled_by_default=True, beyond=EVERY_RULE, scores=every_score
)(attention)
