"""Correctness checks. No cell is timed before they pass.

- `gate` decides what is checked of an implementation, `probes` in which cases besides its own.
- `module_checks`, `gradient_checks` and `dropout` check one implementation in one case.
- `calls` defines a call, `building` makes it, `checked_calls` watches what it does, `verifying` compares its outputs.
- `problem` defines a test problem and its expected outputs, `inputs` the tensors that a call gets. Problems are made in
  `attention_problems` (cores and layers), `revealing_problems` (each shows one fault) and `decoder_problems` (blocks and
  models), from the numbers of `data` and `patterns`.
- `reference` computes what is expected, `bounds` how far an output may be off.
- `settings` refuses changes of global settings, all of which are in `watched_settings`, and `afterwards` refuses threads that
  still work after a call.
- `dispatch` finds the kernel that ran, `impl_hash` hashes the code.
"""
