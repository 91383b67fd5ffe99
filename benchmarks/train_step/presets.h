// Well-known models whose steps are timed: their config.json, with random weights and without dropout.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "millrace/base/json.h"

namespace millrace {

struct Preset {
  Json config;
  std::int64_t length;  ///< tokens of a sequence, unless an option says otherwise
};

inline const std::map<std::string, Preset>& Presets() {
  const auto gpt2 = [](int hidden, int layers, int heads) {
    return Json{{"model_type", "gpt2"}, {"n_embd", hidden},    {"n_layer", layers},
                {"n_head", heads},      {"vocab_size", 50257}, {"n_positions", 1024},
                {"attn_pdrop", 0},      {"embd_pdrop", 0},     {"resid_pdrop", 0}};
  };
  static const std::map<std::string, Preset> presets = {{"llama2-7b",
                                                         {{{"model_type", "llama"},
                                                           {"hidden_size", 4096},
                                                           {"intermediate_size", 11008},
                                                           {"num_hidden_layers", 32},
                                                           {"num_attention_heads", 32},
                                                           {"vocab_size", 32000},
                                                           {"max_position_embeddings", 4096}},
                                                          4096}},
                                                        {"gpt2-124m", {gpt2(768, 12, 12), 1024}},
                                                        {"gpt2-medium", {gpt2(1024, 24, 16), 1024}},
                                                        {"bert-large",
                                                         {{{"model_type", "bert"},
                                                           {"hidden_size", 1024},
                                                           {"intermediate_size", 4096},
                                                           {"num_hidden_layers", 24},
                                                           {"num_attention_heads", 16},
                                                           {"vocab_size", 30522},
                                                           {"hidden_dropout_prob", 0},
                                                           {"attention_probs_dropout_prob", 0}},
                                                          128}},
                                                        {"gptj-6b",
                                                         {{{"model_type", "gptj"},
                                                           {"n_embd", 4096},
                                                           {"n_layer", 28},
                                                           {"n_head", 16},
                                                           {"rotary_dim", 64},
                                                           {"vocab_size", 50400},
                                                           {"n_positions", 2048},
                                                           {"attn_pdrop", 0},
                                                           {"embd_pdrop", 0},
                                                           {"resid_pdrop", 0}},
                                                          2048}}};
  return presets;
}

}  // namespace millrace
