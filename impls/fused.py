"""All heads in one product, by view and transpose."""

from .formula import attention
from .registry import EVERY_RULE, every_score, register

fused = register(
    "fused", takes_mask=True, baseline=True, compiled_by_default=True, beyond=EVERY_RULE, scores=every_score
)(attention)
