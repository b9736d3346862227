"""Commands that measure and judge: each calls bench, which measures, and reports, which judges what was saved."""
