"""Commands that combine bench, which measures, with reports, which judges saved results."""
