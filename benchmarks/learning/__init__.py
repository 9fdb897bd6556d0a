"""The horizon study: does training on short episodes first help? `plan.md` says what is asked, and how it is run."""
