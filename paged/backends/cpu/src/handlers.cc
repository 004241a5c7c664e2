// What XLA calls. Everything is checked before a kernel sees an address: shapes and types, which the
// caller checked already, here; the values of the step, which only show now, in step.h.

#include <string>
#include <vector>

#include "paths.h"
#include "step.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace paged {
namespace {

Type type_of(const char* name, ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32: return Type::kFloat32;
    case ffi::DataType::F16: return Type::kFloat16;
    case ffi::DataType::BF16: return Type::kBFloat16;
    case ffi::DataType::F8E4M3FN: return Type::kFloat8E4M3;
    case ffi::DataType::F8E5M2: return Type::kFloat8E5M2;
    case ffi::DataType::S8: return Type::kInt8;
    default:
      refuse(
          name, ": got element type ", int64_t(type),
          ", expected float32, float16, bfloat16, float8_e4m3fn, float8_e5m2 or int8");
  }
}

Type compute_type(const char* name, ffi::DataType type) {
  const Type found = type_of(name, type);
  require(
      found == Type::kFloat32 || found == Type::kFloat16 || found == Type::kBFloat16, name,
      ": got an 8-bit type, expected float32, float16 or bfloat16");
  return found;
}

void require_shape(const char* name, ffi::Span<const int64_t> got, std::vector<int64_t> expected) {
  const auto listed = [](const auto& sizes) {
    std::string all;
    for (const int64_t size : sizes) all += (all.empty() ? "" : ", ") + text(size);
    return "(" + all + ")";
  };
  const std::vector<int64_t> sizes(got.begin(), got.end());
  if (sizes != expected) {
    refuse(name, ": got shape ", listed(sizes), ", expected ", listed(expected));
  }
}

// A scale is absent (no entry), one for all heads, or one for each.
const float* scale_of(
    const char* name, const ffi::Buffer<ffi::F32>& scale, int64_t heads, int64_t* step) {
  const int64_t count = int64_t(scale.element_count());
  require(
      count <= 1 || count == heads, name, ": got ", count, " numbers, expected 0, 1 or ", heads);
  *step = count > 1 ? 1 : 0;
  return count == 0 ? nullptr : scale.typed_data();
}

// The entries of keys and values must lie inside the array, for any block and slot.
void require_strides(
    const Strides& strides, int64_t elements, int64_t num_blocks, int64_t block_size, int64_t heads,
    int64_t dim) {
  const int64_t sizes[] = {num_blocks, block_size, heads, dim};
  for (const int64_t size : sizes) require(size > 0, "cache: got an axis of ", size);
  const int64_t steps[] = {
      strides.block, strides.slot, strides.head, strides.dim, strides.to_value};
  // In 128 bits: nothing that is asked for may wrap.
  __int128 last = strides.to_value;
  for (int i = 0; i < 5; ++i) require(steps[i] >= 0, "strides: got ", steps[i]);
  for (int i = 0; i < 4; ++i) last += __int128(sizes[i] - 1) * steps[i];
  require(last < elements, "strides: reach past the ", elements, " elements of the cache");
}

const Kernels& kernels_of(int64_t path) {
  const Kernels* kernels = find_path(path);
  require(kernels != nullptr, "path: got ", path, ", which this machine does not run");
  return *kernels;
}

int64_t threads_of(const ffi::ThreadPool& pool, int64_t most) {
  int64_t threads = pool.num_threads();
  if (threads < 1) threads = 1;
  return most > 0 && most < threads ? most : threads;
}

ffi::Error attend(
    ffi::ThreadPool pool, ffi::AnyBuffer query, ffi::AnyBuffer cache,
    ffi::Buffer<ffi::S32> block_table, ffi::Buffer<ffi::S32> seq_lens,
    ffi::Buffer<ffi::S32> query_start_loc, ffi::Buffer<ffi::F32> k_scale,
    ffi::Buffer<ffi::F32> v_scale, ffi::Buffer<ffi::F32> sinks, ffi::Result<ffi::AnyBuffer> out,
    ffi::Result<ffi::Buffer<ffi::F32>> lse, ffi::Span<const int64_t> strides, int64_t num_blocks,
    int64_t block_size, int64_t kv_heads, int64_t value_dim, int64_t window, float scale,
    float soft_cap, int64_t path, int64_t most_threads) {
  try {
    const auto shape = query.dimensions();
    require(shape.size() == 3, "query: got ", shape.size(), " dimensions, expected 3");
    const int64_t tokens = shape[0], heads = shape[1], dim = shape[2];
    require(
        kv_heads > 0 && heads % kv_heads == 0, "query: got ", heads, " heads, expected a multiple of ", kv_heads);
    require(
        value_dim > 0 && value_dim <= dim, "value_dim: got ", value_dim, ", expected 1 to ", dim);
    require(window >= 0, "window: got ", window);
    require(strides.size() == 5, "strides: got ", strides.size(), ", expected 5");
    require(
        block_table.dimensions().size() == 2, "block_table: got ", block_table.dimensions().size(),
        " dimensions, expected 2");
    const int64_t seqs = block_table.dimensions()[0];
    require_shape("seq_lens", seq_lens.dimensions(), {seqs});
    require_shape("query_start_loc", query_start_loc.dimensions(), {seqs + 1});
    require_shape("out", out->dimensions(), {tokens, heads, value_dim});
    require_shape("lse", lse->dimensions(), {tokens, heads});
    Attend call{};
    call.query = query.untyped_data();
    call.query_type = compute_type("query", query.element_type());
    require(out->element_type() == query.element_type(), "out: expected the type of query");
    call.cache = cache.untyped_data();
    call.cache_type = type_of("cache", cache.element_type());
    call.strides = {strides[0], strides[1], strides[2], strides[3], strides[4]};
    require_strides(
        call.strides, int64_t(cache.element_count()), num_blocks, block_size, kv_heads, dim);
    call.table = block_table.typed_data();
    call.table_width = block_table.dimensions()[1];
    call.seq_lens = seq_lens.typed_data();
    call.starts = query_start_loc.typed_data();
    call.kv_heads = kv_heads;
    call.group = heads / kv_heads;
    call.dim = dim;
    call.value_dim = value_dim;
    call.block_size = block_size;
    call.k_scale = scale_of("k_scale", k_scale, kv_heads, &call.k_scale_step);
    call.v_scale = scale_of("v_scale", v_scale, kv_heads, &call.v_scale_step);
    const int64_t num_sinks = int64_t(sinks.element_count());
    require(
        num_sinks == 0 || num_sinks == heads, "sinks: got ", num_sinks,
        " numbers, expected 0 or ", heads);
    call.sinks = num_sinks == 0 ? nullptr : sinks.typed_data();
    call.scale = scale;
    call.soft_cap = soft_cap;
    call.window = window;
    call.out = out->untyped_data();
    call.lse = lse->typed_data();
    const Kernels& kernels = kernels_of(path);
    const auto to_pool = [&](auto task) { pool.Schedule(std::move(task)); };
    attend_step(call, seqs, tokens, num_blocks, kernels, threads_of(pool, most_threads), to_pool);
  } catch (const Refused& refused) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, refused.why);
  }
  return ffi::Error::Success();
}

ffi::Error write(
    ffi::ThreadPool pool, ffi::AnyBuffer key, ffi::AnyBuffer value,
    ffi::Buffer<ffi::S32> slot_mapping, ffi::Buffer<ffi::F32> k_scale,
    ffi::Buffer<ffi::F32> v_scale, ffi::AnyBuffer cache_before, ffi::Result<ffi::AnyBuffer> cache,
    ffi::Span<const int64_t> strides, int64_t num_blocks, int64_t block_size, bool is_latent,
    int64_t path, int64_t most_threads) {
  try {
    const auto shape = key.dimensions();
    require(shape.size() == 3, "key: got ", shape.size(), " dimensions, expected 3");
    const int64_t tokens = shape[0];
    require_shape("slot_mapping", slot_mapping.dimensions(), {tokens});
    if (!is_latent) require_shape("value", value.dimensions(), {tokens, shape[1], shape[2]});
    require(strides.size() == 5, "strides: got ", strides.size(), ", expected 5");
    require(
        cache_before.untyped_data() == cache->untyped_data(),
        "cache: expected the result in the place of the argument");
    Write call{};
    call.key = key.untyped_data();
    call.value = is_latent ? nullptr : value.untyped_data();
    call.type = compute_type("key", key.element_type());
    if (!is_latent) {
      require(value.element_type() == key.element_type(), "value: expected the type of key");
    }
    call.cache = cache->untyped_data();
    call.cache_type = type_of("cache", cache->element_type());
    call.strides = {strides[0], strides[1], strides[2], strides[3], strides[4]};
    call.slots = slot_mapping.typed_data();
    call.heads = shape[1];
    call.dim = shape[2];
    call.block_size = block_size;
    call.k_scale = scale_of("k_scale", k_scale, call.heads, &call.k_scale_step);
    call.v_scale = scale_of("v_scale", v_scale, call.heads, &call.v_scale_step);
    require_strides(
        call.strides, int64_t(cache->element_count()), num_blocks, block_size, call.heads, call.dim);
    const Kernels& kernels = kernels_of(path);
    const auto to_pool = [&](auto task) { pool.Schedule(std::move(task)); };
    write_step(call, tokens, num_blocks, kernels, threads_of(pool, most_threads), to_pool);
  } catch (const Refused& refused) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, refused.why);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    paged_cpu_attend, paged::attend,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::Buffer<ffi::S32>>()
        .Arg<ffi::Buffer<ffi::S32>>()
        .Arg<ffi::Buffer<ffi::S32>>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Ret<ffi::AnyBuffer>()
        .Ret<ffi::Buffer<ffi::F32>>()
        .Attr<ffi::Span<const int64_t>>("strides")
        .Attr<int64_t>("num_blocks")
        .Attr<int64_t>("block_size")
        .Attr<int64_t>("kv_heads")
        .Attr<int64_t>("value_dim")
        .Attr<int64_t>("window")
        .Attr<float>("scale")
        .Attr<float>("soft_cap")
        .Attr<int64_t>("path")
        .Attr<int64_t>("most_threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    paged_cpu_write, paged::write,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::Buffer<ffi::S32>>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Arg<ffi::AnyBuffer>()
        .Ret<ffi::AnyBuffer>()
        .Attr<ffi::Span<const int64_t>>("strides")
        .Attr<int64_t>("num_blocks")
        .Attr<int64_t>("block_size")
        .Attr<bool>("is_latent")
        .Attr<int64_t>("path")
        .Attr<int64_t>("most_threads"));

// The version of XLA's calls that this was compiled for: major * 1000 + minor.
extern "C" int64_t paged_cpu_api() { return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR; }

#pragma GCC visibility pop
