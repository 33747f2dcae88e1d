"""The main job in a minute: a training job, a node that breaks under it, the recovery as it happens."""
