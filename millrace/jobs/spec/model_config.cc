#include "millrace/jobs/spec/model_config.h"

#include "millrace/engine/config/families.h"

namespace millrace::jobs {

Json ModelConfigOf(const Spec& spec) {
  const ModelSpec& from = spec.model;
  const int positions =
      from.max_position_embeddings > 0 ? from.max_position_embeddings : spec.data.dataset.sequence_length;
  Json json = engine::FindFamily(from.family)
                  ->new_model(from.family, {.vocab_size = from.vocab_size,
                                            .hidden_size = from.hidden_size,
                                            .intermediate_size = from.intermediate_size.value_or(0),
                                            .num_layers = from.num_layers,
                                            .num_heads = from.num_heads,
                                            .num_kv_heads = from.num_kv_heads.value_or(0),
                                            .max_positions = positions});
  json.update(from.options);
  return json;
}

}  // namespace millrace::jobs
