"""One way to run a model: what it needs of each memory, and what work it gives to each resource."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from tightship_analyzers.offload_planner.profile import LayerCost, Profile, UpdateForm
from tightship_analyzers.offload_planner.request import CPU
from tightship_analyzers.offload_planner.schedule import GRADIENTS_IN_FLIGHT, ORDER, Choice, LayerWork, Links, Work
from tightship_offload.plan.capabilities import RUNTIME, update_threads
from tightship_offload.plan.model import Clipping, HardwareSpec, Placement, Recompute, UpdateOrder, UpdateStart

ADAM_TRAFFIC_BYTES = 28
"""Host memory traffic of an fp32 Adam update per parameter: reads weight, gradient and two moments, writes three."""
BARE_TRAFFIC_BYTES = 12
"""Of an update without state: reads weight and gradient, writes the weight."""
LOOP_COST = 5.5
"""Of an update that is not fused, in fused ones, where it is not measured; two cores with torch 2.13 had 5.5 to 8.5."""
NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the loop updates: the part of a plan that the search does not choose."""

    order: UpdateOrder = ORDER
    start: UpdateStart = UpdateStart.AFTER_STEP
    clipping: Clipping = Clipping.EXACT
    threads: int | None = None
    """CPU threads for updates; None: as many as the runtime takes by itself."""
    fused: bool = False
    """Layers updated on the CPU take the fused form where the script leaves the form open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak bytes."""

    device: int
    host: int
    """Pinned bytes included."""
    pinned: int
    files: int = 0
    """Space on disk for layers that are in files."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A window, a placement and a loop for one profile on one machine."""

    profile: Profile
    hardware: HardwareSpec
    rules: Rules = field(default_factory=Rules)
    slots: int
    ahead: int | None = None
    """Layers to prefetch; None: all slots but the one that computes."""
    resident: frozenset[int] = frozenset()
    gpu_resident: frozenset[int] = frozenset()
    gpu_streamed: frozenset[int] = frozenset()
    recompute: Recompute = Recompute.NONE
    micro_batches: int = 1
    in_files: bool = False
    """Weights and optimizer state of all layers that move are in files; their gradients are in host memory."""

    @property
    def links(self) -> Links:
        """Of the machine; weights that are in files arrive no faster than these are read."""
        links, read = links_of(self.hardware), self.hardware.nvme_read_bytes_per_s
        if not self.in_files or read is None:
            return links
        h2d = max(1, min(links.h2d, int(read)))
        return replace(links, h2d=h2d, h2d_duplex=min(h2d, links.h2d_duplex))

    @property
    def prefetch(self) -> int:
        """How many layers ahead are fetched."""
        return max(0, self.slots - 1) if self.ahead is None else self.ahead

    @property
    def choice(self) -> Choice:
        """For the simulation."""
        return Choice(
            slots=self.slots,
            resident=self.resident,
            prefetch=self.prefetch,
            order=self.rules.order,
            start=self.rules.start,
            clipping=self.rules.clipping,
        )

    @cached_property
    def work(self) -> Work:
        """What a step asks of each resource."""
        profile, rest = self.profile, self.profile.rest
        trained = sum(layer.trainable for i, layer in enumerate(profile.layers) if i not in self.gpu_resident)
        return Work(
            layers=tuple(self._layer(i, layer) for i, layer in enumerate(profile.layers)),
            micro_batches=self.micro_batches,
            before_forward_ns=self._scaled(rest.before_forward_ns),
            after_forward_ns=self._scaled(rest.after_forward_ns),
            before_backward_ns=self._scaled(rest.before_backward_ns),
            after_backward_ns=self._scaled(rest.after_backward_ns),
            rest_update_ns=self._device_update_ns(rest.trainable) + self._rest_file_ns,
            between_steps_ns=rest.between_steps_ns,
            norm_ns=self._norm_ns(trained * profile.precision.gradients.bytes),
        )

    @cached_property
    def memory(self) -> Memory:
        """What it needs."""
        profile, weights = self.profile, self.profile.precision.weights.bytes
        gradients = profile.precision.gradients.bytes
        layers = list(enumerate(profile.layers))
        moving = [layer for i, layer in layers if i not in self.resident]
        device = self.slots * max((layer.parameters for layer in moving), default=0) * weights
        device += (GRADIENTS_IN_FLIGHT + 1) * max((layer.trainable for layer in moving), default=0) * gradients
        device += sum(self._with_gradients(layer) for i, layer in layers if i in self.resident)
        device += sum(self._state(layer.trainable) for i, layer in layers if i in self.gpu_resident)
        rest = profile.rest
        device += rest.parameters * weights + rest.trainable * gradients + self._state(rest.trainable)
        device += 2 * max((self._streamed_in(profile.layers[i]) for i in self.gpu_streamed), default=0)
        device += self._activation_bytes()
        away = [layer for i, layer in layers if i not in self.gpu_resident]
        files = 0
        if self.in_files:
            pinned = 0
            host = self._host_beside_files(away)
            # Each layer, and its undo log; what does not move twice, and once more while it is written.
            files = 2 * sum(self._in_file(layer) for layer in away) + 3 * self._rest_in_file
            if self.hardware.device != CPU:
                host += self._largest_in_rest_file  # copied from the device, one tensor at a time
        else:
            pinned = sum(self._with_gradients(layer) for layer in away)
            if self.micro_batches > 1 and self.hardware.device != CPU:
                # A profile does not hold the sizes of tensors: a layer's gradients bound the largest one.
                largest = max((layer.trainable for layer in away), default=0) * gradients
                pinned += RUNTIME.staging_buffers * largest
            host = pinned + sum(self._state(layer.trainable) for layer in away)
        host += profile.process_bytes
        if self.rules.clipping is Clipping.SPECULATIVE:
            masters = profile.precision.master.bytes + profile.state_bytes_per_parameter
            host += sum(layer.trainable * masters for layer in away)
        return Memory(device=device, host=host, pinned=pinned, files=files)

    @property
    def bound_ns(self) -> int:
        """No schedule makes the step shorter: the busiest resource alone takes as long."""
        work, links = self.work, links_of(self.hardware)
        compute = self.compute_ns
        moving = [layer for i, layer in enumerate(work.layers) if i not in self.resident]
        # A forward and its backward share what stays in the slots.
        visits = work.micro_batches * (2 * len(moving) - min(self.slots, len(moving)))
        least = min((layer.weight_bytes for layer in moving), default=0)
        h2d = visits * least + sum(one.stream_in_bytes for one in work.layers)
        d2h = work.micro_batches * sum(self._gradient_out(one) for one in work.layers)
        d2h += sum(one.stream_out_bytes for one in work.layers)
        cpu = sum(one.update_ns for one in work.layers if one.placement is Placement.CPU)
        return max(compute + self._late_updates_ns(), h2d * NS // links.h2d, d2h * NS // links.d2h, cpu)

    def _late_updates_ns(self) -> int:
        """What updates that begin after the step add to it: a layer's forward waits for those before it in line."""
        if self.rules.start is not UpdateStart.AFTER_STEP:
            return 0
        updates = [one.update_ns if one.placement is Placement.CPU else 0 for one in self.work.layers]
        if self.rules.order is UpdateOrder.AS_READY:  # the first layer is the last in line
            return max(0, sum(updates) - self.work.before_forward_ns)
        waited, computed, updated = 0, self.work.between_steps_ns + self.work.before_forward_ns, 0
        for one, update_ns in zip(self.work.layers, updates, strict=True):
            updated += update_ns
            waited = max(waited, updated - computed)
            computed += one.forward_ns
        # The device updates what streams through it meanwhile.
        streamed = sum(one.update_ns for one in self.work.layers if one.placement is Placement.GPU_STREAMED)
        return max(0, waited - streamed)

    @cached_property
    def compute_ns(self) -> int:
        """What the device computes in a step, updates included."""
        work = self.work
        each = work.before_forward_ns + work.after_forward_ns + work.before_backward_ns + work.after_backward_ns
        each += sum(one.forward_ns + one.backward_ns for one in work.layers)
        on_device = sum(one.update_ns for one in work.layers if one.placement is not Placement.CPU)
        return work.micro_batches * each + work.between_steps_ns + work.rest_update_ns + on_device

    @cached_property
    def no_offload_ns(self) -> int:
        """The same step, recompute included, on a device that holds everything and updates it."""
        work = self.work
        on_device = sum(one.update_ns for one in work.layers if one.placement is not Placement.CPU)
        updates = sum(self._device_update_ns(layer.trainable) for layer in self.profile.layers)
        return self.compute_ns - on_device - self._rest_file_ns + updates

    def _layer(self, number: int, cost: LayerCost) -> LayerWork:
        precision = self.profile.precision
        placement = Placement.CPU
        if number in self.gpu_resident:
            placement = Placement.GPU_RESIDENT
        elif number in self.gpu_streamed:
            placement = Placement.GPU_STREAMED
        streamed = placement is Placement.GPU_STREAMED
        on_cpu = placement is Placement.CPU
        forward_ns, backward_ns = self._scaled(cost.forward_ns), self._scaled(cost.backward_ns)
        gradient_bytes = cost.trainable * precision.gradients.bytes
        return LayerWork(
            forward_ns=forward_ns,
            backward_ns=backward_ns + (forward_ns if self.recompute is Recompute.LAYER else 0),
            weight_bytes=cost.parameters * precision.weights.bytes,
            gradient_bytes=gradient_bytes,
            update_ns=self._update_ns(cost.trainable) + self._file_ns(cost)
            if on_cpu
            else self._device_update_ns(cost.trainable),
            accumulate_ns=self._traffic_ns(3 * gradient_bytes),
            stream_in_bytes=self._streamed_in(cost) if streamed else 0,
            stream_out_bytes=self._streamed_out(cost) if streamed else 0,
            placement=placement,
        )

    def _gradient_out(self, layer: LayerWork) -> int:
        return 0 if layer.placement is Placement.GPU_RESIDENT else layer.gradient_bytes

    def _with_gradients(self, cost: LayerCost) -> int:
        """Weights and gradients of a layer, in their formats."""
        precision = self.profile.precision
        return cost.parameters * precision.weights.bytes + cost.trainable * precision.gradients.bytes

    def _state(self, trainable: int) -> int:
        """Optimizer state, and master weights where they are a separate copy."""
        precision = self.profile.precision
        master = precision.master.bytes if precision.master is not precision.weights else 0
        return trainable * (self.profile.state_bytes_per_parameter + master)

    def _in_file(self, cost: LayerCost) -> int:
        """Weights and optimizer state of a layer."""
        return cost.parameters * self.profile.precision.weights.bytes + self._state(cost.trainable)

    @cached_property
    def _rest_in_file(self) -> int:
        """Weights and optimizer state of what does not move."""
        rest = self.profile.rest
        size = rest.parameters * self.profile.precision.weights.bytes + self._state(rest.trainable)
        return size + sum(self._in_file(layer) for i, layer in enumerate(self.profile.layers) if i in self.gpu_resident)

    @property
    def _largest_in_rest_file(self) -> int:
        """A profile does not hold the sizes of tensors: none has more elements than a layer, or than all the rest."""
        resident = [layer.parameters for i, layer in enumerate(self.profile.layers) if i in self.gpu_resident]
        return max([self.profile.rest.parameters, *resident]) * self.profile.precision.master.bytes

    @cached_property
    def _rest_file_ns(self) -> int:
        """What does not move is written in each step, while the training waits."""
        write = self.hardware.nvme_write_bytes_per_s
        return round(self._rest_in_file * NS / write) if self.in_files and write is not None else 0

    def _host_beside_files(self, away: list[LayerCost]) -> int:
        """What is in memory of layers in files: at the start all weights, as the script makes them, then gradients.

        Of the files themselves pages can be dropped, except those that an update works on: a layer, its undo log, and
        in the first step its new state.
        """
        precision = self.profile.precision
        weights = sum(layer.parameters for layer in away) * precision.weights.bytes
        gradients = sum(layer.trainable for layer in away) * precision.gradients.bytes
        pages = max((2 * self._in_file(layer) + self._state(layer.trainable) for layer in away), default=0)
        return max(weights, gradients) + pages

    def _streamed_in(self, cost: LayerCost) -> int:
        precision = self.profile.precision
        each = precision.master.bytes + self.profile.state_bytes_per_parameter + precision.gradients.bytes
        return cost.trainable * each

    def _streamed_out(self, cost: LayerCost) -> int:
        precision = self.profile.precision
        copy = precision.weights.bytes if precision.master is not precision.weights else 0
        return cost.trainable * (precision.master.bytes + self.profile.state_bytes_per_parameter + copy)

    def _activation_bytes(self) -> int:
        layers, rest = self.profile.layers, self._scaled(self.profile.rest.activation_bytes)
        if self.recompute is Recompute.NONE:
            return sum(self._scaled(layer.activation_bytes) for layer in layers) + rest
        kept = sum(self._scaled(layer.input_bytes) for layer in layers)
        return kept + max(rest, *(self._scaled(layer.activation_bytes) for layer in layers))

    def _scaled(self, of_profile: int) -> int:
        """A micro-batch of the profile, cut into smaller ones."""
        return -(-of_profile * self.profile.micro_batches // self.micro_batches)

    def _update_ns(self, parameters: int) -> int:
        hardware, precision = self.hardware, self.profile.precision
        traffic = BARE_TRAFFIC_BYTES + 2 * self.profile.state_bytes_per_parameter
        if self._loops(fused=self.rules.fused):
            loop_ns = round(self._traffic_ns(parameters * traffic) * loop_cost(hardware))
            if precision.master is precision.weights:
                return loop_ns
            # The gradient is widened and the weight rounded, in passes of their own.
            wide = precision.gradients.bytes + 2 * precision.master.bytes + precision.weights.bytes
            return loop_ns + self._traffic_ns(parameters * wide)
        if precision.master is precision.weights:
            return self._traffic_ns(parameters * traffic)
        if hardware.master_adam_params_per_s is not None:
            of_fp32 = adam_rate(hardware, None) / hardware.master_adam_params_per_s
            return self._traffic_ns(round(parameters * traffic * of_fp32))
        # One pass: the gradient is read in its own format, and the weight written besides its master.
        traffic += precision.gradients.bytes - precision.master.bytes + precision.weights.bytes
        return self._traffic_ns(parameters * traffic)

    def _file_ns(self, cost: LayerCost) -> int:
        """What files add to an update: the layer is read, and written twice, once to its undo log."""
        read, write = self.hardware.nvme_read_bytes_per_s, self.hardware.nvme_write_bytes_per_s
        if not self.in_files or read is None or write is None or not cost.trainable:
            return 0
        return round(self._in_file(cost) * NS * (1 / read + 2 / write))

    def _norm_ns(self, gradient_bytes: int) -> int:
        """To read them once: what clipping scales is scaled by the update."""
        rate = self.hardware.norm_bytes_per_s
        return self._traffic_ns(gradient_bytes) if rate is None else round(gradient_bytes * NS / rate)

    def _traffic_ns(self, traffic_bytes: int) -> int:
        return round(traffic_bytes * NS / (ADAM_TRAFFIC_BYTES * adam_rate(self.hardware, self.rules.threads)))

    def _device_update_ns(self, parameters: int) -> int:
        rate = self.hardware.device_adam_params_per_s or adam_rate(self.hardware, self.rules.threads)
        if self.hardware.device == CPU and self._loops(fused=False):
            rate /= loop_cost(self.hardware)
        return round(parameters * NS / rate)

    def _loops(self, *, fused: bool) -> bool:
        form = self.profile.update_form
        return form is UpdateForm.LOOP or (form is UpdateForm.OPEN and not fused)


def adam_rate(hardware: HardwareSpec, threads: int | None) -> float:
    """Parameters per second of CPU Adam: at the largest measured number of threads, within those that there are.

    :param threads: None: as many as the runtime takes by itself.
    """
    rates = hardware.adam_params_per_s
    most = update_threads(hardware.cores, on_cpu=hardware.device == CPU) if threads is None else threads
    within = [count for count in rates if count <= most]
    if within:
        return rates[max(within)]
    return rates[min(rates)] if threads is None else rates[min(rates)] * threads / min(rates)


def loop_cost(hardware: HardwareSpec) -> float:
    """How many times as long an update takes that is not fused."""
    if hardware.loop_adam_params_per_s is None:
        return LOOP_COST
    return max(1.0, adam_rate(hardware, None) / hardware.loop_adam_params_per_s)


def links_of(hardware: HardwareSpec) -> Links:
    """The machine's links in whole bytes per second."""
    return Links(
        h2d=int(hardware.h2d_bytes_per_s),
        d2h=int(hardware.d2h_bytes_per_s),
        h2d_duplex=int(min(hardware.h2d_duplex_bytes_per_s, hardware.h2d_bytes_per_s)),
        d2h_duplex=int(min(hardware.d2h_duplex_bytes_per_s, hardware.d2h_bytes_per_s)),
    )


def spread_over(layers: Iterable[int], count: int) -> frozenset[int]:
    """So many of the layers, at even distances."""
    listed = list(layers)
    return frozenset(listed[(2 * k + 1) * len(listed) // (2 * count)] for k in range(count)) if count else frozenset()
