// Setups of published runs, for tests.
#pragma once

#include "millrace/engine/config/families.h"
#include "millrace/plan/layout.h"

namespace millrace::plan {

inline ModelShape GptShape(int hidden, int heads, int layers) {
  return engine::ParseModelConfig({{"model_type", "gpt2"},
                                   {"vocab_size", 51200},
                                   {"n_positions", 2048},
                                   {"n_embd", hidden},
                                   {"n_head", heads},
                                   {"n_layer", layers}},
                                  "GPT")
      .value()
      ->Shape();
}

inline ModelShape LlamaShape(int hidden, int inner, int heads, int layers, int vocab = 128256) {
  return engine::ParseModelConfig({{"model_type", "llama"},
                                   {"vocab_size", vocab},
                                   {"hidden_size", hidden},
                                   {"intermediate_size", inner},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", heads},
                                   {"num_key_value_heads", 8},
                                   {"max_position_embeddings", 131072}},
                                  "Llama")
      .value()
      ->Shape();
}
inline ModelShape Llama8B() { return LlamaShape(4096, 14336, 32, 32); }
inline ModelShape Llama70B() { return LlamaShape(8192, 28672, 64, 80); }
inline ModelShape Llama405B() { return LlamaShape(16384, 53248, 128, 126); }

}  // namespace millrace::plan
