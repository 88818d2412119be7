"""How close the device's work comes to what its memory and its arithmetic allow.

    found = facts.get(Roofline)           # or NotApplicable: without shapes, or for an unknown device
    found.mfu_frac                        # FLOPs of the model over what the devices could have done meanwhile
    for row in found.families:            # matrix products, convolution, attention, elementwise, by element type
        row.family, row.achieved_flops_per_s, row.attainable_flops_per_s
    facts.get(FusionCandidates)           # runs of memory-bound kernels under one module, ranked

[Note: roofline] A kernel that does F floating-point operations on B bytes cannot take less than max(F / peak rate,
B / memory rate). `work` says what F and B of an operator are, from the shapes of its inputs; B counts every input and
output once, as if caches were perfect, so that the attainable rate is never too low a bar.
Source: Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""
