"""Small kernels for the lab to compile. They are about attention in shape only."""

import os

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from paged.backends import AttentionOutput, KernelBackend
from paged.backends.loops import LoopTrips
from paged.backends.tuned import Candidate, Candidates
from paged.layouts import FLASHINFER_HND
from paged.spec import AttentionSpec

SPEC = AttentionSpec(num_heads=8, num_kv_heads=1, head_dim=128, scale=128**-0.5)


def one_sequence(table, lens, query, cache, out, buffer, semaphore):
    """One sequence a grid step; a loop over its blocks, as long as the sequence is."""
    row = pl.program_id(0)
    block_size = buffer.shape[2]
    blocks = (lens[row] + block_size - 1) // block_size

    def step(index, acc):
        copy = pltpu.make_async_copy(cache.at[table[row, index]], buffer, semaphore)
        copy.start()
        copy.wait()
        logits = jax.lax.dot_general(
            query[0], buffer[0, 0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        weights = jnp.exp(logits).astype(buffer.dtype)
        return acc + jnp.dot(weights, buffer[1, 0], preferred_element_type=jnp.float32)

    zero = jnp.zeros(out.shape[1:], jnp.float32)
    out[0] = jax.lax.fori_loop(0, blocks, step, zero).astype(out.dtype)


class Tiny(KernelBackend):
    """Decodes of a full step; one KV head."""

    name = "tiny"
    platform = "tpu"
    layouts = (FLASHINFER_HND,)
    vmem_rows = 0

    def _write(self, cache, key, value, slot_mapping):
        return cache.with_data(cache.layout.write(cache.data, key, value, slot_mapping))

    def _attend(self, query, cache, metadata, spec, sinks):
        heads = (1, spec.num_heads, spec.head_dim)
        tile = pl.BlockSpec(heads, lambda i, *_: (i, 0, 0))
        scratch = [
            pltpu.VMEM(cache.data.shape[1:], cache.data.dtype),
            pltpu.SemaphoreType.DMA,
        ]
        if self.vmem_rows:
            scratch.append(pltpu.VMEM((self.vmem_rows, 128), jnp.float32))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(metadata.num_seqs,),
            in_specs=[tile, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=tile,
            scratch_shapes=scratch,
        )

        def kernel(*refs):
            one_sequence(*refs[:7])
            if self.vmem_rows:
                refs[7][...] = refs[7][...] + 1

        call = pl.pallas_call(
            kernel,
            grid_spec=grid,
            out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
            name="tiny_decode",
        )
        return AttentionOutput(
            call(metadata.block_table, metadata.seq_lens, query, cache.data), None
        )


class TinyWithTrips(Tiny):
    """The same, and it tells how often its loop runs."""

    name = "tiny_with_trips"

    def lab_trips(self, query, cache, metadata, spec):
        blocks = -(-metadata.max_seq_len // cache.block_size)
        return (LoopTrips(depth=2, runs=metadata.num_seqs * blocks, holds="matmul"),)


class TooMuchVmem(Tiny):
    """512 MB of scratch."""

    name = "too_much_vmem"
    vmem_rows = 1 << 20


class EndsItsProcess(Tiny):
    """A compiler that aborts."""

    name = "ends_its_process"

    def _attend(self, query, cache, metadata, spec, sinks):
        os._exit(7)


class TinyWithSizes(TinyWithTrips):
    """The same with a choice: how many rows it counts up beside, which costs VMEM and bundles."""

    name = "tiny_with_sizes"
    choices = (512, 8)

    def __init__(self, vmem_rows=choices[0]):
        self.vmem_rows = vmem_rows

    def lab_candidates(self, query, cache, metadata, spec):
        options = {
            f"rows {rows}": Candidate(TinyWithSizes(rows), {"rows": rows}) for rows in self.choices
        }
        return Candidates({"num_heads": spec.num_heads}, options)
