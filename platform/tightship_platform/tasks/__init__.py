"""Background work: the Celery application, its broker in a folder, periodic tasks, the worker process."""
