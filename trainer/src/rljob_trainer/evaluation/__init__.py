"""`rljob eval`: a model's answers to the rows of an RLJob, scored by its rewards, without training.

weights    checkpoint or model -> a folder, then the engine
sampling   tasks -> engine -> scorer -> groups
passing    rewards of the groups -> mean@n and pass@k
"""
