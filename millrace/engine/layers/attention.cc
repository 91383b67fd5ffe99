#include "millrace/engine/layers/attention.h"

namespace millrace::engine {

at::Tensor SelfAttention::Forward(const ops::LayerInput& x, const ForwardContext& context) const {
  at::Tensor qkv = query_key_value.Forward(x, context);
  if (query_norm || all_queries_norm) qkv = NormQueriesAndKeys(qkv);
  if (rotary) qkv = rotary->Forward(qkv, layout, context.sequences);
  return output.Forward(Attend(qkv, context), context);
}

at::Tensor SelfAttention::NormQueriesAndKeys(const at::Tensor& qkv) const {
  const std::int64_t queries = layout.heads * layout.head_dim, keys = layout.kv_heads * layout.head_dim;
  const auto norm = [&](const std::optional<Norm>& of_heads, const std::optional<AllHeadsNorm>& of_all,
                        std::int64_t begin, std::int64_t columns) {
    const at::Tensor part = qkv.narrow(1, begin, columns);
    if (of_all) return of_all->Forward(part.contiguous());
    return of_heads->Forward(part.reshape({-1, layout.head_dim}).contiguous()).out.view({qkv.size(0), columns});
  };
  return at::cat({norm(query_norm, all_queries_norm, 0, queries), norm(key_norm, all_keys_norm, queries, keys),
                  qkv.narrow(1, queries + keys, keys)},
                 1);
}

at::Tensor SelfAttention::Attend(const at::Tensor& qkv, const ForwardContext& context) const {
  const ops::Sequences& sequences = context.sequences;
  ops::DropoutSite drop = context.DropoutAt(dropout_site, dropout);
  drop.first_token = 0;  // attention sees all tokens
  drop.first_head = first_head;
  if (context.cache == nullptr) return ops::Attention(qkv, layout, sequences, rule, drop);
  return ops::AttendBlocks(qkv, layout, sequences, context.cache->Layer(layer), *context.tables, rule);
}

}  // namespace millrace::engine
