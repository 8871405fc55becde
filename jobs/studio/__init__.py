"""A page to work in: `jobs.studio.job` is the job; who may see it, the list, the session of all tabs, a tab's view."""
