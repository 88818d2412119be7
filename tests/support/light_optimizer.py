"""An optimizer of a job's own, for scripts of tests.

The first optimizer of torch's own imports torch._dynamo, as much again as torch itself, and so does
DistributedDataParallel. Jobs of which only processes, steps and ends are looked at go without.
"""

LIGHT_OPTIMIZER = '''
class Descent(torch.optim.Optimizer):
    """Plain gradient descent. What torch wraps to keep its compiler out, it has itself."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    def add_param_group(self, group):
        self.param_groups.append(self.defaults | group | {"params": list(group["params"])})

    def zero_grad(self):
        for parameter in self.parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters():
            parameter -= self.defaults["lr"] * parameter.grad

    def parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]
'''
"""Defines `Descent(parameters)`; torch is imported before it."""
