#include <c10/cuda/CUDAGuard.h>

#include "millrace/engine/ops/backward/node.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/reference.h"

namespace millrace::engine::ops::cuda {
namespace {

/// Queries that share keys: for more, products of matrices are faster than a kernel that reads the keys again.
constexpr std::int64_t kMostShared = 64;

}  // namespace

at::Tensor AttendCached(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                        const AttentionMask& mask) {
  const std::int64_t rows = queries.size(0), heads = queries.size(1), count = queries.size(2), dim = queries.size(3);
  const c10::cuda::CUDAGuard guard(queries.device());
  const at::Tensor q = queries.stride(3) == 1 ? queries : queries.contiguous();
  const kernels::Element element = ElementOf(q);
  kernels::DecodeArgs args{.q = q.data_ptr(),
                           .k = keys.data_ptr(),
                           .v = values.data_ptr(),
                           .rows = rows,
                           .heads = heads,
                           .kv_heads = keys.size(1),
                           .queries = count,
                           .keys = keys.size(2),
                           .dim = dim,
                           .q_row = q.stride(0),
                           .q_head = q.stride(1),
                           .q_query = q.stride(2),
                           .k_row = keys.stride(0),
                           .k_head = keys.stride(1),
                           .k_key = keys.stride(2),
                           .v_row = values.stride(0),
                           .v_head = values.stride(1),
                           .v_key = values.stride(2),
                           .causal = mask.causal,
                           .window = mask.window};
  const bool fits = keys.scalar_type() == q.scalar_type() && values.scalar_type() == q.scalar_type() &&
                    keys.stride(3) == 1 && values.stride(3) == 1 && kernels::FitsDecode(element, args);
  if (!fits || heads / args.kv_heads * count > kMostShared || Recording({queries, keys, values})) {
    return reference::AttendCached(queries, keys, values, mask);
  }
  const at::Tensor out = NewLike(q, {rows, count, heads * dim}, q.scalar_type());
  const at::Tensor scratch = NewLike(q, {kernels::DecodeScratch(args)}, at::kFloat);
  args.out = MemoryOf(out);
  args.scratch = MemoryOf<float>(scratch);
  kernels::Decode(element, args, StreamOf(q));
  return out;
}

void AppendToCache(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& cached_keys,
                   const at::Tensor& cached_values, std::int64_t position) {
  const at::ScalarType type = cached_keys.scalar_type();
  if (keys.strides() != values.strides() || keys.stride(3) != 1 || keys.scalar_type() != type ||
      values.scalar_type() != type) {
    cached_keys.narrow(2, position, keys.size(2)).copy_(keys);
    cached_values.narrow(2, position, keys.size(2)).copy_(values);
    return;
  }
  const c10::cuda::CUDAGuard guard(keys.device());
  kernels::Append(ElementOf(keys),
                  {.keys = keys.data_ptr(),
                   .values = values.data_ptr(),
                   .cached_keys = MemoryOf(cached_keys),
                   .cached_values = MemoryOf(cached_values),
                   .rows = keys.size(0),
                   .heads = keys.size(1),
                   .count = keys.size(2),
                   .dim = keys.size(3),
                   .capacity = cached_keys.size(2),
                   .position = position,
                   .from_row = keys.stride(0),
                   .from_head = keys.stride(1),
                   .from_token = keys.stride(2)},
                  StreamOf(keys));
}

}  // namespace millrace::engine::ops::cuda
