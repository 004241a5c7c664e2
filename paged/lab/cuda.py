"""A CUDA device as XLA's ahead-of-time compiler wants it described: a text proto."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """One CUDA device.

    Attributes:
        name: what users call it.
        device_kind: what the driver calls it.
        compute_capability: major, minor.
        core_count: streaming multiprocessors.
        clock_ghz: boost clock.
        hbm_gbps: memory bandwidth, 1e9 bytes per second.
        bf16_tflops: dense peak of the tensor cores, bf16, 1e12 per second.
        memory_bytes: device memory.
        l2_bytes: second level cache.
        shared_bytes_per_core: shared memory of a multiprocessor.
        shared_bytes_per_block: most of it that one thread block may ask for.
        source: where the figures are from.
    """

    name: str
    device_kind: str
    compute_capability: tuple[int, int]
    core_count: int
    clock_ghz: float
    hbm_gbps: float
    bf16_tflops: float
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    source: str

    platform = "cuda"

    def config(self) -> str:
        """XLA's GpuTargetConfigProto of this device, as text.

        Fields of the message: xla/stream_executor/device_description.proto and
        xla/service/gpu/gpu_target_config (openxla).
        """
        major, minor = self.compute_capability
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              threads_per_core_limit: 2048
              shared_memory_per_block: 49152
              shared_memory_per_block_optin: {self.shared_bytes_per_block}
              shared_memory_per_core: {self.shared_bytes_per_core}
              core_count: {self.core_count}
              fpus_per_core: {64 if major == 8 else 128}
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
              memory_bandwidth: {round(self.hbm_gbps * 1e9)}
              l2_cache_size: {self.l2_bytes}
              clock_rate_ghz: {self.clock_ghz}
              device_memory_size: {self.memory_bytes}
              cuda_compute_capability {{ major: {major} minor: {minor} }}
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
            device_description_str: "{self.device_kind}"
        """
