"""What is recognised as communication between ranks, and on what evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_trace import DeviceTrace

from tightship_analyzers.analysis.judge import judge_trace
from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.metrics.kernel_classes import Evidence, KernelClass, kernel_classes
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.communication import is_communication


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "rcclGenericKernel",
        "mscclKernel_Sum_half_Simple",
        "void mscclpp::collective::allreduceNvls<__half>",
        "hcclAllReduce",
        "hcom_allReduce__428_0_1",
        "nvshmemi_transfer_rma_p",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(void*, float*)",
        "void deep_ep::internode_ll::combine<true, 3, 7168, 9>(void*)",
        "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>",
        "void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half> >",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>",
        "kuserbuffers_pushrecv(int, int, int*, int*, int, unsigned long)",
        "userbuffers_fp16_sum_inplace_gpu_rw_ag",
        "ucc_tl_cuda_reduce_multi_dst_kernel",
        "gloo:all_reduce",
        "void newlib::(anonymous namespace)::one_stage_all_gather<__half, 8>(Args)",
        "fastcomm_allreduce_kernel_2shot(void*, int)",
        "void ep::AllToAllKernel<float>(float*)",
    ],
)
def test_names_of_libraries(name: str) -> None:
    assert is_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "triton_red_fused_native_layer_norm_0",
        "Memcpy PtoP (Device -> Device)",
        "hipMemcpyAsync",
        "void cub::DeviceReduceKernel<cub::Policy600>",
        "aten::all_close",
        "void blockAllReduce<float>(float*)",
        "void softmax_warp_all_reduce<float, 32>(float*)",
        "void rms_norm_kernel<BlockAllReduce<float> >(float*)",
        "scatter_reduce_kernel",
    ],
)
def test_names_of_others(name: str) -> None:
    assert not is_communication(name)


class TestLink:
    def made(self) -> DeviceTrace:
        made = DeviceTrace()
        made.host("symm_mem::my_reduce", 0, 100)
        made.host("aten::copy_", 50, 90)
        made.pair((10, 20), (200, 300), name="strange_kernel")
        made.pair((60, 70), (300, 400), name="elementwise")
        made.pair((110, 120), (400, 500), name="gemm")
        return made

    def test_a_kernel_of_a_collective_operator_itself(self, tmp_path: Path) -> None:
        trace = self.made().read(tmp_path)
        assert trace.device_events.kind.tolist() == [EventKind.COLLECTIVE, EventKind.KERNEL, EventKind.KERNEL]
        classes = kernel_classes(trace)
        assert classes.evidence.tolist() == [Evidence.LINK, Evidence.NONE, Evidence.NONE]
        assert classes.recognised.tolist() == [KernelClass.COMMUNICATION, KernelClass.COMPUTE, KernelClass.COMPUTE]
        assert classes.inferred == 0, "inferred means by name alone"

    def test_facts_and_figures_agree(self, tmp_path: Path) -> None:
        trace = self.made().read(tmp_path)
        assert Facts(trace)[DeviceBusy].communication.measure_ns == 100

    def test_a_copy_that_a_collective_makes_stays_a_copy(self, tmp_path: Path) -> None:
        made = DeviceTrace()
        made.host("c10d::allgather_", 0, 100)
        made.copy(200, 300, name="Memcpy PtoP (Device -> Device)", link=made.call(10, 20, name="cudaMemcpyAsync"))
        assert made.read(tmp_path).device_events.kind.tolist() == [EventKind.COPY]

    def test_a_collective_that_ends_after_its_caller(self, tmp_path: Path) -> None:
        made = DeviceTrace()
        made.host("outer", 0, 100)
        made.host("c10d::allreduce_", 50, 101)
        made.pair((100, 105), (200, 300), name="strange_kernel")
        assert made.read(tmp_path).device_events.kind.tolist() == [EventKind.KERNEL]


def test_what_is_inferred_is_reported(tmp_path: Path) -> None:
    made = DeviceTrace()
    made.pair((10, 20), (200, 300), name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    made.pair((30, 40), (300, 400), name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert "2 device events counted as communication by name alone" in str(judge_trace(made.read(tmp_path)).summary)
    made.host("c10d::allreduce_", 0, 100)
    assert "by their names alone" not in str(judge_trace(made.read(tmp_path)).summary)
